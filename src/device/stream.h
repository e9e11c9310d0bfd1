// Device and Stream: memory and an order of work on one accelerator, and the table of ops that runs on it.
//
// Ops are called on a stream and run in the order of the calls, some time later; everything they name must stay where
// it is until then. On the CPU they run at once, in the calling thread and its pool, and device memory is the host's. A
// device outlives its streams and everything it packed or allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "device/event.h"
#include "device/view.h"

namespace deepinfer {

namespace ops {
struct OpTable;
}

// Work that was recorded once and can be launched again: same kernels, same addresses, whatever they hold by then.
class Graph {
 public:
  virtual ~Graph() = default;
};

class Stream {
 public:
  virtual ~Stream() = default;
  const ops::OpTable& ops() const { return *ops_; }

  // Copies between any two of device and host memory, in the stream's order. Host memory from Device::allocate_pinned
  // is read or written later and must stay; any other has been read or written when the call returns.
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;
  // Waits until everything so far has run. Fails if any of it did: the device is of no further use then. Fails as well
  // where `check` would.
  virtual Status synchronize() = 0;

  // What is called between the two is recorded and not run. A device that cannot says so.
  virtual bool can_record() const { return false; }
  virtual void begin_recording() {}
  virtual std::unique_ptr<Graph> end_recording() { return nullptr; }
  virtual void launch(Graph& /*graph*/) {}

  // Whether all that was called so far could be enqueued. If an op lacked memory, it and the ops after it did nothing;
  // that is told once, and the stream is as good as before.
  virtual Status check() { return Status(); }

  // Events of this stream's device. Recorded again, an event stands for the later moment.
  virtual std::unique_ptr<Event> make_event() { return std::make_unique<HostEvent>(); }
  virtual void record(Event& event) { static_cast<HostEvent&>(event).record(); }

 protected:
  explicit Stream(const ops::OpTable* table) : ops_(table) {}

 private:
  const ops::OpTable* ops_;
};

class Device {
 public:
  virtual ~Device() = default;
  // What a person reads, e.g. "cpu, 8 threads, avx512_bf16 kernels".
  virtual std::string description() const = 0;
  // The set of kernels by name; part of an output's fingerprint, since sets may round differently.
  virtual std::string kernel_set() const = 0;
  virtual std::unique_ptr<Stream> make_stream() = 0;
  // Called once by the thread that will drive a stream, before it does.
  virtual void adopt_this_thread() {}

  // How activations are kept if the model rounds them to BF16 between operations, or does not.
  virtual ElementType activation_type(bool rounds_to_bf16) const = 0;
  // Device memory at a multiple of 256 bytes, its contents undefined. Fails if there is not so much.
  virtual Result<std::shared_ptr<std::byte>> allocate(int64_t bytes) = 0;
  // Host memory that the device reads and writes directly.
  virtual Result<std::shared_ptr<std::byte>> allocate_pinned(int64_t bytes) = 0;
  // `host` where the device can read it: the same memory, or a copy. `host` must outlive the result.
  virtual Result<std::shared_ptr<const std::byte>> make_resident(std::span<const std::byte> host) = 0;
  // Whether device memory is the host's.
  virtual bool shares_host_memory() const = 0;
  // Bytes that `allocate` can still give.
  virtual int64_t free_bytes() const = 0;
};

}  // namespace deepinfer
