// Device and Stream: an order of work on one accelerator, and the table of ops that runs on it.
//
// Ops are called on a stream and run in the order of the calls. On the CPU they run at once, in the calling thread and
// its pool. A device outlives its streams and everything it packed or allocated.
#pragma once

#include <memory>
#include <string>

namespace deepinfer {

namespace ops {
struct OpTable;
}

class Stream {
 public:
  virtual ~Stream() = default;
  const ops::OpTable& ops() const { return *ops_; }

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
};

}  // namespace deepinfer
