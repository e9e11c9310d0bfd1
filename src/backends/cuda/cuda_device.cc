#include "backends/cuda/cuda_device.h"

#include <cuda_runtime.h>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/cuda_stream.h"
#include "backends/cuda/op_table.h"

namespace deepinfer {
namespace cuda {
namespace {

constexpr int kCard = 0;  // of those that are visible

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

Status card_error(const char* what, cudaError_t error) {
  (void)cudaGetLastError();
  return unsupported("device cuda: {} failed: {} ({}); check that nvidia-smi lists the card and that it is free", what,
                     cudaGetErrorString(error), cudaGetErrorName(error));
}

}  // namespace

Status check_card(const CardFacts& facts) {
  if (facts.driver_version == 0) {
    return unsupported("device cuda: no NVIDIA driver found (libcuda.so.1); install the driver, or use --device cpu");
  }
  if (facts.driver_version / 1000 < facts.runtime_version / 1000) {
    return unsupported(
        "device cuda: the driver supports CUDA {} and this build needs {}; update the driver, or use --device cpu",
        version_text(facts.driver_version), version_text(facts.runtime_version / 1000 * 1000));
  }
  if (facts.num_cards == 0) {
    return unsupported(
        "device cuda: the driver sees no card; check nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device cpu");
  }
  if (facts.major != 9 || facts.minor != 0) {
    return unsupported(
        "device cuda: {} has compute capability {}.{} and lacks wgmma, the instruction that this build's products, "
        "attention, index scores and experts are made of; only capability 9.0 has it (H100, H200, GH200): choose such "
        "a card with CUDA_VISIBLE_DEVICES, or use --device cpu",
        facts.name, facts.major, facts.minor);
  }
  return Status();
}

CudaDevice::CudaDevice(std::string card, int num_sms, int64_t total_bytes, int64_t budget)
    : card_(std::move(card)), num_sms_(num_sms), total_bytes_(total_bytes), table_(make_op_table()), pool_(budget) {}

std::string CudaDevice::description() const {
  return fmt::format("cuda, {}, {:.0f} GiB of which {:.0f} may be used, {} multiprocessors, {} kernels", card_,
                     static_cast<double>(total_bytes_) / (int64_t{1} << 30),
                     static_cast<double>(pool_.budget()) / (int64_t{1} << 30), num_sms_, kernel_set());
}

std::unique_ptr<Stream> CudaDevice::make_stream() { return std::make_unique<CudaStream>(*this, &table_); }

void CudaDevice::adopt_this_thread() { DI_CUDA_CHECK(cudaSetDevice(kCard)); }

Result<std::shared_ptr<std::byte>> CudaDevice::allocate_pinned(int64_t bytes) {
  void* data = nullptr;
  const cudaError_t error = cudaHostAlloc(&data, std::max<int64_t>(bytes, 1), cudaHostAllocMapped);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    return Status(ErrorCode::kOutOfMemory,
                  fmt::format("{:.1f} MiB of pinned host memory refused ({}); make what is kept in host memory smaller",
                              static_cast<double>(bytes) / (1 << 20), cudaGetErrorString(error)));
  }
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(data), [](std::byte* p) { (void)cudaFreeHost(p); });
}

Result<std::shared_ptr<const std::byte>> CudaDevice::make_resident(std::span<const std::byte> host) {
  DI_ASSIGN_OR_RETURN(std::shared_ptr<std::byte> copy, pool_.allocate(static_cast<int64_t>(host.size())));
  if (!host.empty()) {
    cudaError_t error =
        cudaMemcpyAsync(copy.get(), host.data(), host.size(), cudaMemcpyHostToDevice, cudaStreamPerThread);
    if (error == cudaSuccess) error = cudaStreamSynchronize(cudaStreamPerThread);
    if (error != cudaSuccess) return card_error("copying weights to the card", error);
  }
  return std::shared_ptr<const std::byte>(std::move(copy));
}

}  // namespace cuda

Result<std::unique_ptr<Device>> make_cuda_device(const CudaOptions& options) {
  if (!(options.memory_utilization > 0.0) || options.memory_utilization > 1.0) {
    return invalid_input("gpu_memory_utilization {}: give a share of the card's memory above 0 and up to 1",
                         options.memory_utilization);
  }
  if (options.kernels != "auto" && options.kernels != "cuda_sm90") {
    return invalid_input("unknown kernel set '{}': device cuda has auto, cuda_sm90", options.kernels);
  }
  cuda::CardFacts facts;
  // Without a driver these two still answer: version 0, and an error that stands for no card.
  if (cudaDriverGetVersion(&facts.driver_version) != cudaSuccess) facts.driver_version = 0;
  facts.runtime_version = CUDART_VERSION;
  cudaDeviceProp card = {};
  const cudaError_t counted = cudaGetDeviceCount(&facts.num_cards);
  if (counted != cudaSuccess) {
    (void)cudaGetLastError();
    facts.num_cards = 0;
  } else if (facts.num_cards > 0) {
    if (const cudaError_t error = cudaGetDeviceProperties(&card, cuda::kCard); error != cudaSuccess) {
      return cuda::card_error("asking for the card's properties", error);
    }
    facts.name = card.name;
    facts.major = card.major;
    facts.minor = card.minor;
  }
  DI_RETURN_IF_ERROR(cuda::check_card(facts));
  if (const cudaError_t error = cudaSetDevice(cuda::kCard); error != cudaSuccess) {
    return cuda::card_error("taking the card", error);
  }
  size_t free_bytes = 0, total_bytes = 0;
  if (const cudaError_t error = cudaMemGetInfo(&free_bytes, &total_bytes); error != cudaSuccess) {
    return cuda::card_error("asking for the card's memory", error);
  }
  const auto budget = static_cast<int64_t>(static_cast<double>(total_bytes) * options.memory_utilization);
  if (budget > static_cast<int64_t>(free_bytes)) {
    return Status(
        ErrorCode::kOutOfMemory,
        fmt::format("device cuda: gpu_memory_utilization {} is {:.1f} GiB, and {:.1f} of {:.1f} GiB are free; "
                    "lower it, or end other programs that use the card",
                    options.memory_utilization, static_cast<double>(budget) / (int64_t{1} << 30),
                    static_cast<double>(free_bytes) / (int64_t{1} << 30),
                    static_cast<double>(total_bytes) / (int64_t{1} << 30)));
  }
  return std::unique_ptr<Device>(std::make_unique<cuda::CudaDevice>(card.name, card.multiProcessorCount,
                                                                    static_cast<int64_t>(total_bytes), budget));
}

}  // namespace deepinfer
