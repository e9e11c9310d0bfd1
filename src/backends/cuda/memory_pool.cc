#include "backends/cuda/memory_pool.h"

#include <algorithm>
#include <mutex>

#include "backends/cuda/cuda_check.h"

namespace deepinfer::cuda {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kGranularity = int64_t{2} << 20;  // of the runtime's own allocations
constexpr int64_t kSlabBytes = int64_t{64} << 20;
constexpr int64_t kLargeBytes = kSlabBytes / 4;  // from here on a slab of its own

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }
double mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

// What was taken from the card. Outlives the pool as long as a slab does.
struct MemoryPool::Account {
  std::mutex mutex;
  int64_t taken = 0;
  std::weak_ptr<Slab> open;  // the slab that small requests are cut from
};

struct MemoryPool::Slab {
  std::shared_ptr<Account> account;
  std::byte* data = nullptr;
  int64_t bytes = 0;
  int64_t used = 0;

  ~Slab() {
    // Waits for the card to finish what it runs, so no kernel can still be at work in the slab. Fails once a kernel has
    // faulted, or when the process ends and the runtime went first: then there is nothing left to free.
    (void)cudaFree(data);
    std::lock_guard lock(account->mutex);
    account->taken -= bytes;
  }
};

MemoryPool::MemoryPool(int64_t budget) : budget_(budget), account_(std::make_shared<Account>()) {}

Result<std::shared_ptr<std::byte>> MemoryPool::allocate(int64_t bytes) {
  DI_CHECK(bytes >= 0, "a request for {} bytes", bytes);
  const int64_t size = round_up(std::max<int64_t>(bytes, 1), kAlignment);
  std::shared_ptr<Slab> open, slab;  // released after the lock: a slab's last owner takes it
  std::lock_guard lock(account_->mutex);
  open = account_->open.lock();
  if (open && size < kLargeBytes && open->bytes - open->used >= size) {
    slab = open;
  } else {
    int64_t slab_bytes = round_up(size, kGranularity);
    if (size < kLargeBytes && account_->taken + kSlabBytes <= budget_) slab_bytes = kSlabBytes;
    if (account_->taken + slab_bytes > budget_) {
      return Status(ErrorCode::kOutOfMemory,
                    fmt::format("{:.1f} MiB of GPU memory asked for, {:.1f} of {:.1f} MiB are left; raise "
                                "gpu_memory_utilization or make the cache or the batch smaller",
                                mib(bytes), mib(budget_ - account_->taken), mib(budget_)));
    }
    std::byte* data = nullptr;
    if (const cudaError_t error = cudaMalloc(&data, slab_bytes); error != cudaSuccess) {
      (void)cudaGetLastError();
      return Status(ErrorCode::kOutOfMemory,
                    fmt::format("the card refused {:.1f} MiB with {:.1f} MiB taken ({}); lower gpu_memory_utilization "
                                "or end other programs that use the card",
                                mib(slab_bytes), mib(account_->taken), cudaGetErrorString(error)));
    }
    account_->taken += slab_bytes;
    slab = std::make_shared<Slab>();
    slab->account = account_;
    slab->data = data;
    slab->bytes = slab_bytes;
    if (size < kLargeBytes) account_->open = slab;
  }
  std::byte* piece = slab->data + slab->used;
  slab->used += size;
  return std::shared_ptr<std::byte>(std::move(slab), piece);
}

int64_t MemoryPool::free_bytes() const {
  std::lock_guard lock(account_->mutex);
  return std::max<int64_t>(0, (budget_ - account_->taken) / kGranularity * kGranularity);
}

}  // namespace deepinfer::cuda
