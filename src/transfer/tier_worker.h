// TierWorker: the thread that moves units between host memory and disk, in the background. Owns the disk store; shares
// the host blocks, of which the cache keeps those of a job until it is told that the job is done.
//
// The engine's thread submits and polls and never waits: nothing here holds a lock while it reads or writes. Loads go
// before saves, for a request waits for them. Ending the worker drains it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cache/transfers.h"
#include "transfer/disk_store.h"
#include "transfer/host_blocks.h"

namespace deepinfer {

class TierWorker {
 public:
  TierWorker(std::unique_ptr<DiskStore> store, const HostBlocks& host, int64_t max_waiting_jobs = 256);
  ~TierWorker();
  TierWorker(const TierWorker&) = delete;
  TierWorker& operator=(const TierWorker&) = delete;

  // Takes over the job. If too many wait already, it is refused: its result, not ok, comes with the next poll.
  void submit(DiskJob job);
  // Appends the results since the last call.
  void poll(std::vector<DiskJobResult>& results);
  // Waits until everything submitted is done.
  void drain();
  // As of the last job that was done.
  DiskStoreCounters counters() const;

 private:
  void work();
  DiskJobResult perform(const DiskJob& job);
  bool save(const DiskJob& job, int64_t& bytes);
  bool load(const DiskJob& job, int64_t& bytes);

  // Of the worker's thread alone.
  std::unique_ptr<DiskStore> store_;
  const HostBlocks& host_;
  std::vector<UnitRecord::Block> unit_blocks_;

  const int64_t max_waiting_jobs_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<DiskJob> loads_, saves_;
  std::vector<DiskJobResult> results_;
  DiskStoreCounters counters_;
  bool is_busy_ = false;
  bool is_ending_ = false;

  std::thread thread_;
};

}  // namespace deepinfer
