// FakeDisk: what a tier worker does, with a map for a disk. Jobs take a while, and some of them fail.
#pragma once

#include <random>
#include <unordered_map>
#include <vector>

#include "cache/kv_cache.h"
#include "scheduler/fake_executor.h"

namespace deepinfer {

class FakeDisk {
 public:
  explicit FakeDisk(uint32_t seed) : random_(seed) {}

  // A turn of the engine's loop.
  void serve(KvCache& cache, FakeExecutor& executor) {
    cache.take_disk_jobs(jobs_);
    while (!jobs_.empty() && random_() % 3 != 0) {
      const size_t next = random_() % jobs_.size();
      const DiskJob job = std::move(jobs_[next]);
      jobs_.erase(jobs_.begin() + static_cast<int64_t>(next));
      cache.disk_job_done(perform(job, executor));
    }
  }
  int64_t loads() const { return loads_; }

 private:
  DiskJobResult perform(const DiskJob& job, FakeExecutor& executor) {
    DiskJobResult result{.id = job.id, .ok = random_() % 8 != 0};
    for (const DiskJob::Block& block : job.blocks) {
      std::vector<uint64_t>& host = executor.host_block(block.group, block.host_block);
      if (job.kind == DiskJob::Kind::kSave && result.ok) files_[block.key] = host;
      if (job.kind == DiskJob::Kind::kLoad) {
        const auto found = files_.find(block.key);
        if (found == files_.end()) result.ok = false;
        host = found == files_.end() || !result.ok ? std::vector<uint64_t>(host.size(), 666) : found->second;
      }
    }
    if (job.kind == DiskJob::Kind::kLoad) {
      ++loads_;
      if (!result.ok) result.gone.push_back(job.unit);
    }
    return result;
  }

  std::mt19937 random_;
  std::vector<DiskJob> jobs_;
  std::unordered_map<ContentKey, std::vector<uint64_t>, ContentKeyHash> files_;
  int64_t loads_ = 0;
};

}  // namespace deepinfer
