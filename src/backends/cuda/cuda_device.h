// CudaDevice: one NVIDIA card as a device: which cards the kernels run on, memory within a budget, streams.
//
// The card is the first that the runtime sees; CUDA_VISIBLE_DEVICES chooses another. Kernels are compiled for compute
// capability 9.0 (Hopper) and use instructions that exist there alone.
#pragma once

#include <memory>
#include <string>

#include "backends/cuda/memory_pool.h"
#include "base/status.h"
#include "device/stream.h"
#include "ops/op_table.h"

namespace deepinfer {

struct CudaOptions {
  double memory_utilization = 0.9;  // of the card's memory, what the device may take
  std::string kernels = "auto";     // a kernel set by name; auto: the one that the card runs
};

// Fails with kUnsupported where no card or no driver is, or none that the kernels run on.
Result<std::unique_ptr<Device>> make_cuda_device(const CudaOptions& options);

namespace cuda {

// What is asked of a machine before its card is used.
struct CardFacts {
  int driver_version = 0;   // as cudaDriverGetVersion gives it: 1000 * major + 10 * minor; 0: no driver
  int runtime_version = 0;  // that of this build
  int num_cards = 0;
  std::string name;  // of the card
  int major = 0;     // compute capability
  int minor = 0;
};
Status check_card(const CardFacts& facts);

class CudaDevice final : public Device {
 public:
  CudaDevice(std::string card, int num_sms, int64_t total_bytes, int64_t budget);

  std::string description() const override;
  std::string kernel_set() const override { return "cuda_sm90"; }
  std::unique_ptr<Stream> make_stream() override;
  void adopt_this_thread() override;
  ElementType activation_type(bool rounds_to_bf16) const override {
    return rounds_to_bf16 ? ElementType::kBf16 : ElementType::kF32;
  }
  Result<std::shared_ptr<std::byte>> allocate(int64_t bytes) override { return pool_.allocate(bytes); }
  Result<std::shared_ptr<std::byte>> allocate_pinned(int64_t bytes) override;
  Result<std::shared_ptr<const std::byte>> make_resident(std::span<const std::byte> host) override;
  bool shares_host_memory() const override { return false; }
  int64_t free_bytes() const override { return pool_.free_bytes(); }

  int num_sms() const { return num_sms_; }

 private:
  std::string card_;
  int num_sms_;
  int64_t total_bytes_;
  ops::OpTable table_;
  MemoryPool pool_;
};

}  // namespace cuda
}  // namespace deepinfer
