// Scheduler: which sequences run in the next step, with which blocks; what a finished step means for them. No device,
// no model, no clock: every decision is a function of what was submitted and collected.
//
// The engine thread calls, a step: ballot → (vote) → plan → [launch] … [collect] → apply. Up to two plans may be in
// flight; a plan assumes that every sampled token continues its sequence, so a sequence that ends in a step may run in
// the next one in vain, and its result is dropped there.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "cache/kv_cache.h"
#include "scheduler/replay.h"
#include "scheduler/sequence.h"
#include "scheduler/sequence_pool.h"
#include "scheduler/voting.h"
#include "step/step_plan.h"
#include "step/step_result.h"

namespace deepinfer {

struct SchedulerOptions {
  int32_t max_num_seqs = 64;              // slots
  int32_t max_queued = 1024;              // waiting sequences
  int64_t max_num_batched_tokens = 2048;  // of a prefill step
  int64_t max_model_len = 4096;           // prompt and answer
  // Prompts with more uncached tokens than this are long; at most max_long_prefills of them are under way at a time,
  // and shorter ones may pass those that wait.
  int64_t long_prefill_tokens = 8192;
  int32_t max_long_prefills = 1;
  int64_t prefix_unit_interval = 8192;  // tokens; 0: units at ends and branches only
  int64_t max_backtracking = 0;         // tokens that may be taken back
  ReplayOptions replay;
};

struct NewSequence {
  std::unique_ptr<SequenceInput> input;
  int32_t priority = 0;
  uint64_t salt = 0;
  SequenceHandle after;
  bool use_prefix_cache = true;
};

struct FinishedSequence {
  FinishReason reason = FinishReason::kStop;
  int32_t end_token = -1;  // that ended it, -1 otherwise
};

// Told by apply and abort, on the engine thread. May not call the scheduler.
class SequenceObserver {
 public:
  virtual ~SequenceObserver() = default;
  // The next token of the answer. True: the answer ends with it (a stop string).
  virtual bool on_token(SequenceHandle sequence, int32_t token, const TokenLogprobs* logprobs) = 0;
  virtual void on_prompt_logprobs(SequenceHandle sequence, std::span<const TokenLogprobs> logprobs) = 0;
  // Exactly once a sequence; the handle is dead afterwards.
  virtual void on_finished(const Sequence& sequence, const FinishedSequence& how) = 0;
};

struct SchedulerCounters {
  int64_t steps[4] = {};  // by StepKind
  int64_t preemptions = 0;
  int64_t prefill_tokens = 0;     // computed
  int64_t recomputed_tokens = 0;  // of them, after a preemption
  int64_t cached_tokens = 0;      // adopted
  int64_t wasted_rows = 0;        // of sequences that had ended
};

class Scheduler {
 public:
  // Blocks of each group that one sequence of max_model_len tokens may need at a time; a cache must have them.
  static std::vector<int32_t> least_blocks(const CacheLayout& layout, const SchedulerOptions& options);

  Scheduler(const SchedulerOptions& options, KvCache& cache);

  // Refuses when the queue is full. Requires: an input that fits max_model_len.
  Result<SequenceHandle> submit(NewSequence sequence);
  // Ends it now. No-op for a handle that is dead.
  void abort(SequenceHandle sequence, FinishReason reason, SequenceObserver& observer);

  BallotRecord ballot();
  // Plans that kind of step as far as slots and blocks allow. One without items is not a step: it must not be launched.
  // The plan stays valid until two further ones were made.
  const StepPlan& plan(StepKind kind);
  void apply(const StepResult& result, SequenceObserver& observer);
  // A step without items, to be launched always: what a rank runs while others work, so that their collectives find it;
  // it may move what the cache wants moved, and is counted apart.
  const StepPlan& plan_placeholder();

  int32_t num_waiting() const { return static_cast<int32_t>(waiting_.size()); }
  int32_t num_running() const { return static_cast<int32_t>(running_.size()); }
  int32_t num_loading() const { return static_cast<int32_t>(loading_.size()); }  // of those that wait
  bool idle() const { return waiting_.empty() && running_.empty(); }
  const Sequence* find(SequenceHandle handle) { return pool_.find(handle); }
  // The sequence that a slot of the last plan belongs to.
  SequenceHandle owner_of(SlotHandle slot) const { return slot_owner_[slot.slot]; }
  const SchedulerCounters& counters() const { return counters_; }

  // Every invariant that can be checked from outside a step: for tests. Empty if all is well.
  std::string check();

 private:
  static constexpr size_t kMaxLoads = 8;  // prefixes brought back at a time

  void plan_prefill(StepPlan& plan);
  void plan_decode(StepPlan& plan);
  int64_t plan_prompts(bool long_ones, int64_t budget, StepPlan& plan);
  void add_prefill_item(Sequence& sequence, int64_t count, StepPlan& plan);
  bool may_start(const Sequence& sequence);
  bool start(Sequence& sequence, int64_t budget, StepPlan& plan);
  bool begin_load(Sequence& sequence, const PrefixMatch& match);
  void poll_loads();
  void drop_load(Sequence& sequence, Sequence::Load next);
  void take_slot(Sequence& sequence, int64_t length, StepPlan& plan);
  bool grow(Sequence& sequence, int64_t end, StepPlan& plan);
  enum class Victims { kLaterArrivals, kLowerPriorities };
  bool grow_or_preempt(Sequence& sequence, int64_t end, Victims victims, StepPlan& plan);
  void preempt(Sequence& sequence);
  void leave_running(Sequence& sequence);
  void finish(Sequence& sequence, FinishedSequence how, SequenceObserver& observer);
  void publish(Sequence& sequence, int64_t length);
  void publish_between(Sequence& sequence, int64_t begin, int64_t end);
  void apply_item(const StepItem& item, const ItemResult& result, const StepResult& step, SequenceObserver& observer);
  void enqueue(Sequence& sequence);
  bool goes_first(int32_t a, int32_t b) const;
  bool is_long(const Sequence& sequence) const;
  Sequence& at(int32_t index) { return pool_.at(index); }

  SchedulerOptions options_;
  KvCache& cache_;
  SequencePool pool_;
  std::vector<int32_t> waiting_;  // places in the pool, by priority, then arrival
  std::vector<int32_t> running_;  // with a slot, in the same order
  int32_t num_prefilling_ = 0;    // of them
  int32_t num_long_ = 0;          // of these
  // Inputs of sequences that ended, until no step in flight reads them.
  std::vector<std::pair<int64_t, std::unique_ptr<SequenceInput>>> retired_inputs_;  // (last step, input)
  std::vector<int32_t> free_slots_;
  std::vector<SequenceHandle> slot_owner_;  // [slot]
  std::vector<uint32_t> slot_generation_;   // [slot]
  std::vector<int32_t> loading_;            // of the waiting: a load is pending or ready
  std::vector<int32_t> scratch_;
  StepPlan plans_[3];
  int64_t next_step_ = 1;
  int64_t collected_step_ = 0;
  int64_t retired_step_ = 0;  // blocks may come free when this step has been collected
  int64_t next_arrival_ = 0;
  SchedulerCounters counters_;
};

}  // namespace deepinfer
