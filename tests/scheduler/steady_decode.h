// SteadyDecode: a scheduler at the released model's cache layout, with many sequences in the middle of long answers and
// a device that returns a token at once. Nothing starts or ends, so what a step costs is the scheduler's own.
#pragma once

#include <memory>
#include <random>
#include <vector>

#include "base/check.h"
#include "scheduler/scheduler.h"
#include "step/executor.h"

namespace deepinfer {

class InstantExecutor final : public Executor {
 public:
  explicit InstantExecutor(int32_t num_slots) {
    for (StepResult& result : results_) result.items.reserve(num_slots);
  }
  int max_in_flight() const override { return 2; }
  void launch(const StepPlan& plan) override { plans_[launched_++ % 2] = &plan; }
  const StepResult& collect() override {
    const StepPlan& plan = *plans_[collected_ % 2];
    StepResult& result = results_[collected_++ % 3];
    result.id = plan.id;
    result.kind = plan.kind;
    result.items.clear();
    for (const StepItem& item : plan.items) result.items.push_back({.slot = item.slot, .token = item.samples ? 5 : -1});
    return result;
  }

 private:
  const StepPlan* plans_[2] = {};
  StepResult results_[3];
  int64_t launched_ = 0, collected_ = 0;
};

class SteadyDecode final : private SequenceObserver {
 public:
  static constexpr int64_t kShortest = 100, kLongest = 300;  // prompts, so that blocks end in different steps

  // Every sequence may answer max_steps tokens.
  SteadyDecode(int32_t num_sequences, int64_t max_steps) : num_sequences_(num_sequences), executor_(num_sequences) {
    const SchedulerOptions options{.max_num_seqs = num_sequences,
                                   .max_queued = num_sequences,
                                   .max_num_batched_tokens = 8192,
                                   .max_model_len = kLongest + max_steps + 2};
    const CacheLayout layout = {{{"window", 64, 64, 128},
                                 {"global_1", 64, 64, CacheGroup::kKeepAll},
                                 {"global_2", 128, 64, CacheGroup::kKeepAll},
                                 {"tail", 16, 64, 2}}};
    std::vector<int32_t> blocks = Scheduler::least_blocks(layout, options);
    for (size_t g = 0; g < blocks.size(); ++g) {
      const int64_t all = options.max_model_len / layout.groups[g].tokens_per_block + 2;
      const int64_t kept = layout.groups[g].retention == CacheGroup::kKeepAll ? all : 12;
      blocks[g] += static_cast<int32_t>(num_sequences * kept);
    }
    cache_ = std::make_unique<KvCache>(layout, KvCacheOptions{.num_blocks = blocks});
    scheduler_ = std::make_unique<Scheduler>(options, *cache_);
    std::mt19937 random(1);
    for (int32_t i = 0; i < num_sequences; ++i) {
      auto input = std::make_unique<SequenceInput>();
      input->num_prompt_tokens = kShortest + static_cast<int64_t>(random() % (kLongest - kShortest + 1));
      input->tokens.resize(input->num_prompt_tokens);
      for (int32_t& token : input->tokens) token = static_cast<int32_t>(random() % 100000);
      input->max_tokens_total = input->num_prompt_tokens + max_steps;
      input->end_tokens = {1};
      DI_CHECK(scheduler_->submit({.input = std::move(input)}).ok(), "sequence {} was refused", i);
    }
    while (scheduler_->ballot().num_decoding < num_sequences) step();
  }
  ~SteadyDecode() override {
    while (in_flight_ > 0) collect();
  }

  // The engine's turn, overlapped: plan and launch a step, then apply the one before. In three parts, to be timed.
  const StepPlan& schedule() {
    const BallotRecord ballot = scheduler_->ballot();
    return scheduler_->plan(vote({&ballot, 1}, options_, voting_));
  }
  void launch(const StepPlan& plan) {
    DI_CHECK(!plan.items.empty(), "nothing left to decode");
    executor_.launch(plan);
    ++in_flight_;
  }
  void apply() {
    while (in_flight_ > 1) collect();
  }
  void step() {
    launch(schedule());
    apply();
  }

  int32_t num_sequences() const { return num_sequences_; }
  int64_t tokens() const { return tokens_; }
  const Scheduler& scheduler() const { return *scheduler_; }

 private:
  void collect() {
    scheduler_->apply(executor_.collect(), *this);
    --in_flight_;
  }
  bool on_token(SequenceHandle, int32_t, const TokenLogprobs*) override { return ++tokens_ < 0; }
  void on_prompt_logprobs(SequenceHandle, std::span<const TokenLogprobs>) override {}
  void on_finished(const Sequence& sequence, const FinishedSequence&) override {
    DI_CHECK(false, "sequence {} ended", sequence.handle.index);
  }

  int32_t num_sequences_;
  InstantExecutor executor_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;
  const VotingOptions options_{.low_occupancy = num_sequences_, .max_prefill_steps = 1 << 20};  // prompts first
  VotingState voting_;
  int in_flight_ = 0;
  int64_t tokens_ = 0;
};

}  // namespace deepinfer
