// CudaStream: a CUDA stream, and the scratch memory of the ops that run on it.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <string_view>
#include <utility>

#include "device/stream.h"

namespace deepinfer::cuda {

class CudaDevice;

// Thrown in ops of this backend that are refused memory. The op table catches it: nobody else sees it.
struct OutOfMemory {
  Status status;
};

class CudaStream final : public Stream {
 public:
  CudaStream(CudaDevice& device, const ops::OpTable* table);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void copy(void* to, const void* from, int64_t bytes) override;
  Status synchronize() override;
  Status check() override;
  std::unique_ptr<Event> make_event() override;
  void record(Event& event) override;
  bool can_record() const override { return true; }
  void begin_recording() override;
  std::unique_ptr<Graph> end_recording() override;
  void launch(Graph& graph) override;

  cudaStream_t handle() const { return handle_; }
  CudaDevice& device() const { return device_; }
  int num_sms() const { return num_sms_; }
  // Device memory for what one op keeps between its kernels, at a multiple of 256 bytes; the next op's replaces it.
  // Grows as ops ask for more, which must not happen while recording: a step of the same shape runs once before. Throws
  // OutOfMemory.
  void* scratch(int64_t bytes);
  // The same for what blocks of one kernel hand each other: zeros when a kernel starts, and zeros when it ends.
  void* exchange(int64_t bytes);
  // Memory that stays, such as packed weights. Throws OutOfMemory; `purpose` goes into its message.
  std::shared_ptr<std::byte> allocate(int64_t bytes, std::string_view purpose);

  // Ops do nothing until `check` has told why.
  void fail(Status why);
  bool has_failed() const { return !failure_.ok(); }

 private:
  CudaDevice& device_;
  cudaStream_t handle_ = nullptr;
  int num_sms_ = 0;
  bool recording_ = false;
  // Memory of ops, replaced when they ask for more.
  struct Room {
    std::shared_ptr<std::byte> memory;
    int64_t bytes = 0;
  };
  // Whether it was replaced.
  bool grow(Room& room, int64_t bytes, int64_t least);

  Room scratch_, exchange_;
  Status failure_;
};

// Ops of this backend are only ever called with its own streams.
inline CudaStream& cuda_stream(Stream& stream) { return static_cast<CudaStream&>(stream); }

}  // namespace deepinfer::cuda
