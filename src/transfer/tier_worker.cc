#include "transfer/tier_worker.h"

#include <utility>

namespace deepinfer {

TierWorker::TierWorker(std::unique_ptr<DiskStore> store, const HostBlocks& host, int64_t max_waiting_jobs)
    : store_(std::move(store)), host_(host), max_waiting_jobs_(max_waiting_jobs), counters_(store_->counters()) {
  thread_ = std::thread([this] { work(); });
}

TierWorker::~TierWorker() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void TierWorker::submit(DiskJob job) {
  {
    const std::lock_guard lock(mutex_);
    if (static_cast<int64_t>(loads_.size() + saves_.size()) >= max_waiting_jobs_) {
      results_.push_back({.id = job.id});
      return;
    }
    (job.kind == DiskJob::Kind::kLoad ? loads_ : saves_).push_back(std::move(job));
  }
  changed_.notify_all();
}

void TierWorker::poll(std::vector<DiskJobResult>& results) {
  const std::lock_guard lock(mutex_);
  std::move(results_.begin(), results_.end(), std::back_inserter(results));
  results_.clear();
}

void TierWorker::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return loads_.empty() && saves_.empty() && !is_busy_; });
}

DiskStoreCounters TierWorker::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

void TierWorker::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return is_ending_ || !loads_.empty() || !saves_.empty(); });
    if (loads_.empty() && saves_.empty()) return;
    std::deque<DiskJob>& queue = loads_.empty() ? saves_ : loads_;
    const DiskJob job = std::move(queue.front());
    queue.pop_front();
    is_busy_ = true;
    lock.unlock();
    DiskJobResult result = perform(job);
    lock.lock();
    results_.push_back(std::move(result));
    counters_ = store_->counters();
    is_busy_ = false;
    changed_.notify_all();
  }
}

DiskJobResult TierWorker::perform(const DiskJob& job) {
  DiskJobResult result{.id = job.id};
  result.ok = job.kind == DiskJob::Kind::kSave ? save(job, result.bytes) : load(job, result.bytes);
  result.gone = store_->take_gone();
  if (!result.ok && job.kind == DiskJob::Kind::kLoad) result.gone.push_back(job.unit);
  return result;
}

bool TierWorker::save(const DiskJob& job, int64_t& bytes) {
  unit_blocks_.clear();
  for (const DiskJob::Block& block : job.blocks) {
    const auto group = static_cast<uint32_t>(block.group);
    unit_blocks_.push_back({group, block.key});
    if (store_->has_block(block.key)) continue;
    const std::span<const std::byte> content = host_.block(block.group, block.host_block);
    if (!store_->put_block(block.key, group, content)) return false;
    bytes += static_cast<int64_t>(content.size());
  }
  return store_->put_unit(job.unit, job.salt, job.tokens, unit_blocks_);
}

bool TierWorker::load(const DiskJob& job, int64_t& bytes) {
  if (!store_->has_unit(job.unit, job.salt, job.tokens)) return false;
  for (const DiskJob::Block& block : job.blocks) store_->prefetch(block.key);
  for (const DiskJob::Block& block : job.blocks) {
    const std::span<std::byte> content = host_.block(block.group, block.host_block);
    if (!store_->get_block(block.key, static_cast<uint32_t>(block.group), content)) {
      store_->drop_unit(job.unit);
      return false;
    }
    bytes += static_cast<int64_t>(content.size());
  }
  return true;
}

}  // namespace deepinfer
