// EngineLoop: the engine's thread: takes requests, plans steps, keeps the device busy, hands out what came back.
//
//   admit → ballot → vote → plan i+1 → launch i+1 → collect i → apply i → deliver
//
// With overlap the device runs step i+1 while the host applies step i; without, each step is collected before the next
// is planned. Results are the same.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/timers.h"
#include "cache/kv_cache.h"
#include "engine/active_request.h"
#include "scheduler/scheduler.h"
#include "step/executor.h"
#include "transfer/tier_worker.h"

namespace deepinfer {

struct EngineLoopOptions {
  VotingOptions voting;
  bool overlap = true;
  int64_t max_queued = 1024;  // sequences that wait
  std::string fingerprint;
  std::vector<int32_t> eos_tokens;  // of the model: not reported as stop tokens
};

// A request that passed its checks, with an input for each choice.
struct PreparedRequest {
  std::unique_ptr<ActiveRequest> active;
  std::vector<std::unique_ptr<SequenceInput>> inputs;
  uint64_t salt = 0;
};

class EngineLoop final : private SequenceObserver {
 public:
  // disk: null if the cache has no such tier.
  EngineLoop(const EngineLoopOptions& options, Scheduler& scheduler, KvCache& cache, Executor& executor,
             TierWorker* disk);
  ~EngineLoop() override;  // aborts what is left, saves what the disk shall keep

  // Any thread. Refused if the queue is full or the loop is draining.
  Status submit(PreparedRequest request);
  void cancel(RequestId id);
  void drain();
  EngineStats stats() const;
  std::string timer_table() const;

 private:
  struct Owner {
    ActiveRequest* request = nullptr;
    int32_t choice = 0;
  };

  void run();
  bool admit();
  void start(PreparedRequest request);
  enum class Turn { kWorked, kWaitsForDisk, kIdle };
  Turn step();
  void collect_one();
  void talk_to_disk();
  void save_to_disk();
  void abort(const ActiveRequest& request);
  void abort_all(FinishReason reason);
  void expire_overdue();
  void deliver();
  void wait_for_work(Turn turn);
  void refresh_stats();
  uint64_t key(SequenceHandle handle) const { return static_cast<uint64_t>(handle.index) << 32 | handle.generation; }

  bool on_token(SequenceHandle sequence, int32_t token, const TokenLogprobs* logprobs) override;
  void on_prompt_logprobs(SequenceHandle sequence, std::span<const TokenLogprobs> logprobs) override;
  void on_finished(const Sequence& sequence, const FinishedSequence& how) override;

  EngineLoopOptions options_;
  Scheduler& scheduler_;
  KvCache& cache_;
  Executor& executor_;
  TierWorker* disk_;

  mutable std::mutex mutex_;  // of everything down to stats_
  std::condition_variable changed_;
  std::vector<PreparedRequest> arrivals_;
  std::vector<RequestId> cancels_;
  int64_t num_queued_ = 0;  // sequences in arrivals_ and waiting in the scheduler
  size_t num_active_ = 0;   // requests, those in arrivals_ included
  bool draining_ = false, stopping_ = false;
  EngineStats stats_;

  // The loop's own.
  std::unordered_map<RequestId, std::unique_ptr<ActiveRequest>> requests_;
  std::unordered_map<uint64_t, Owner> owners_;  // by sequence
  std::vector<ActiveRequest*> news_;
  std::vector<PreparedRequest> taken_;
  std::vector<RequestId> taken_cancels_, finished_;
  std::vector<DiskJob> disk_jobs_;
  std::vector<DiskJobResult> disk_results_;
  VotingState voting_state_;
  int in_flight_ = 0;
  bool overdue_possible_ = false;
  std::string device_error_;
  int64_t tokens_delivered_ = 0;
  double device_seconds_ = 0, idle_seconds_ = 0;
  bool steps_follow_ = false;

  Timer admit_timer_{"admit"}, schedule_timer_{"schedule"}, launch_timer_{"launch"}, collect_timer_{"collect"},
      apply_timer_{"apply"}, deliver_timer_{"deliver"}, idle_timer_{"device idle"}, device_timer_{"device step"};
  std::thread thread_;
};

}  // namespace deepinfer
