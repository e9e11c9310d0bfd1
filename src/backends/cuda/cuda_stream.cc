#include "backends/cuda/cuda_stream.h"

#include <algorithm>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/cuda_device.h"

namespace deepinfer::cuda {
namespace {

class CudaGraph final : public Graph {
 public:
  CudaGraph(cudaGraphExec_t exec, std::shared_ptr<std::byte> scratch, std::shared_ptr<std::byte> exchange)
      : exec_(exec), scratch_(std::move(scratch)), exchange_(std::move(exchange)) {}
  ~CudaGraph() override { (void)cudaGraphExecDestroy(exec_); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  cudaGraphExec_t exec() const { return exec_; }

 private:
  cudaGraphExec_t exec_;
  std::shared_ptr<std::byte> scratch_, exchange_;  // what kernels use, also if the stream's have grown since
};

Status device_failed(cudaError_t error) {
  return Status(ErrorCode::kIo,
                fmt::format("the card failed: {} ({}); start the program again, and if it happens again "
                            "look for messages of the driver in the system's log",
                            cudaGetErrorString(error), cudaGetErrorName(error)));
}

class CudaEvent final : public Event {
 public:
  CudaEvent() { DI_CUDA_CHECK(cudaEventCreate(&handle_)); }
  ~CudaEvent() override { (void)cudaEventDestroy(handle_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  Result<bool> reached() override {
    const cudaError_t error = cudaEventQuery(handle_);
    if (error == cudaErrorNotReady) return false;
    if (error != cudaSuccess) return device_failed(error);
    return true;
  }
  Status wait() override {
    const cudaError_t error = cudaEventSynchronize(handle_);
    return error == cudaSuccess ? Status() : device_failed(error);
  }
  double seconds_since(const Event& earlier) const override {
    float milliseconds = 0;
    DI_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, static_cast<const CudaEvent&>(earlier).handle_, handle_));
    return 1e-3 * milliseconds;
  }
  cudaEvent_t handle() const { return handle_; }

 private:
  cudaEvent_t handle_ = nullptr;
};

constexpr int64_t kLeastScratch = int64_t{1} << 20;
constexpr int64_t kLeastExchange = int64_t{6} << 20;  // a product's that fills a large card once

}  // namespace

CudaStream::CudaStream(CudaDevice& device, const ops::OpTable* table)
    : Stream(table), device_(device), num_sms_(device.num_sms()) {
  // Does not wait for the default stream, which other libraries of the process may use.
  DI_CUDA_CHECK(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking));
}

CudaStream::~CudaStream() {
  (void)cudaStreamSynchronize(handle_);
  (void)cudaStreamDestroy(handle_);
}

// The runtime keeps the contract by itself: host memory that is not pinned has been read or written on return.
void CudaStream::copy(void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return;
  DI_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, handle_));
}

Status CudaStream::synchronize() {
  DI_CHECK(!recording_, "synchronize() while recording");
  cudaError_t error = cudaStreamSynchronize(handle_);
  return error == cudaSuccess ? check() : device_failed(error);
}

void CudaStream::fail(Status why) { failure_ = std::move(why); }

Status CudaStream::check() { return std::exchange(failure_, Status()); }

std::unique_ptr<Event> CudaStream::make_event() { return std::make_unique<CudaEvent>(); }

void CudaStream::record(Event& event) {
  DI_CHECK(!recording_, "record() of an event while recording");
  DI_CUDA_CHECK(cudaEventRecord(static_cast<CudaEvent&>(event).handle(), handle_));
}

void CudaStream::begin_recording() {
  DI_CHECK(!recording_, "begin_recording() while recording");
  DI_CUDA_CHECK(cudaStreamBeginCapture(handle_, cudaStreamCaptureModeThreadLocal));
  recording_ = true;
}

std::unique_ptr<Graph> CudaStream::end_recording() {
  DI_CHECK(recording_, "end_recording() without begin_recording()");
  recording_ = false;
  cudaGraph_t graph = nullptr;
  DI_CUDA_CHECK(cudaStreamEndCapture(handle_, &graph));
  cudaGraphExec_t exec = nullptr;
  DI_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  DI_CUDA_CHECK(cudaGraphDestroy(graph));
  DI_CUDA_CHECK(cudaGraphUpload(exec, handle_));
  return std::make_unique<CudaGraph>(exec, scratch_.memory, exchange_.memory);
}

void CudaStream::launch(Graph& graph) {
  DI_CHECK(!recording_, "launch() while recording");
  DI_CUDA_CHECK(cudaGraphLaunch(static_cast<CudaGraph&>(graph).exec(), handle_));
}

void* CudaStream::scratch(int64_t bytes) {
  grow(scratch_, bytes, kLeastScratch);
  return scratch_.memory.get();
}

void* CudaStream::exchange(int64_t bytes) {
  if (grow(exchange_, bytes, kLeastExchange)) {
    DI_CUDA_CHECK(cudaMemsetAsync(exchange_.memory.get(), 0, exchange_.bytes, handle_));
  }
  return exchange_.memory.get();
}

bool CudaStream::grow(Room& room, int64_t bytes, int64_t least) {
  if (bytes <= room.bytes) return false;
  DI_CHECK(!recording_, "an op needs {} bytes of scratch while recording and {} are there: run the step once before",
           bytes, room.bytes);
  const int64_t wanted = std::max(least, bytes + bytes / 4);
  // The old memory goes back first, once no kernel uses it: the two need not fit at once.
  DI_CUDA_CHECK(cudaStreamSynchronize(handle_));
  room = Room();
  room.memory = allocate(wanted, "what an op keeps between its kernels (fewer max_num_batched_tokens need less)");
  room.bytes = wanted;
  return true;
}

std::shared_ptr<std::byte> CudaStream::allocate(int64_t bytes, std::string_view purpose) {
  Result<std::shared_ptr<std::byte>> memory = device_.allocate(bytes);
  if (!memory.ok()) {
    throw OutOfMemory{Status(ErrorCode::kOutOfMemory,
                             fmt::format("no device memory for {}: {}", purpose, memory.status().message()))};
  }
  return std::move(memory).value();
}

}  // namespace deepinfer::cuda
