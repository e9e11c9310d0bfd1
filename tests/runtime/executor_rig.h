// An executor with a scheduler and a cache on one of the small models, driven step by step, and requests for it.
#pragma once

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backends/cpu/cpu_device.h"
#include "model/golden_model.h"
#include "runtime/loaded_model.h"
#include "runtime/model_executor.h"
#include "scheduler/scheduler.h"

namespace deepinfer {

// A scheduler, a cache and an executor on a small model, driven step by step, two in flight.
class Rig final : private SequenceObserver {
 public:
  static constexpr int32_t kSlots = 8;

  explicit Rig(const std::string& model = "tiny_full", int num_threads = 2)
      : Rig(make_cpu_device({.num_threads = num_threads}).value(), model) {}
  Rig(std::unique_ptr<Device> device, const std::string& model) : device_(std::move(device)) {
    // Without a row cache: the queue of its prefetching thread grows at moments that depend on timing.
    loaded_ = load_model(*device_, golden_folder(model), {.engram_cache_rows = 0}).value();
    const CacheLayout& layout = loaded_.model->kv_layout().cache;
    const SchedulerOptions options{.max_num_seqs = kSlots, .max_queued = 64, .max_model_len = 512};
    std::vector<int32_t> blocks = Scheduler::least_blocks(layout, options);
    for (size_t g = 0; g < blocks.size(); ++g) blocks[g] *= kSlots;
    cache_ = std::make_unique<KvCache>(layout, KvCacheOptions{.num_blocks = blocks});
    scheduler_ = std::make_unique<Scheduler>(options, *cache_);
    executor_ = std::make_unique<ModelExecutor>(
        *device_, *loaded_.model, DeviceBlocks::allocate(*device_, layout, blocks).value(), nullptr, kSlots);
  }
  ~Rig() override {
    while (in_flight_ > 0) collect();
  }

  SequenceHandle submit(const std::vector<int32_t>& prompt, int64_t max_tokens, SamplingParams params = {}) {
    auto input = std::make_unique<SequenceInput>();
    input->tokens = prompt;
    input->num_prompt_tokens = static_cast<int64_t>(prompt.size());
    input->max_tokens_total = input->num_prompt_tokens + max_tokens;
    input->params = std::move(params);
    input->sampling_key = static_cast<uint64_t>(prompt[0]);
    return scheduler_->submit({.input = std::move(input)}).value();
  }
  bool step() {
    const BallotRecord ballot = scheduler_->ballot();
    const StepPlan& plan = scheduler_->plan(vote({&ballot, 1}, {.low_occupancy = kSlots}, voting_));
    const bool planned = !plan.items.empty();
    if (planned) {
      executor_->launch(plan);
      ++in_flight_;
    }
    while (in_flight_ > (planned ? 1 : 0)) collect();
    return !scheduler_->idle() || in_flight_ > 0;
  }
  int32_t num_decoding() { return scheduler_->ballot().num_decoding; }
  const std::vector<int32_t>& answer(SequenceHandle handle) { return answers_[handle.index]; }
  const std::vector<TokenLogprobs>& logprobs(SequenceHandle handle) { return logprobs_[handle.index]; }
  int num_failed() const { return num_failed_; }
  const LoadedModel& loaded() const { return loaded_; }
  int64_t num_tokens() const { return num_tokens_; }

 private:
  void collect() {
    const StepResult& result = executor_->collect();
    EXPECT_EQ(result.error, "");
    if (idle_seconds.size() < idle_seconds.capacity()) {
      idle_seconds.push_back(result.idle_seconds);
      step_seconds.push_back(result.device_seconds);
    }
    scheduler_->apply(result, *this);
    --in_flight_;
  }
  bool on_token(SequenceHandle sequence, int32_t token, const TokenLogprobs* logprobs) override {
    if (keeps_logprobs && logprobs != nullptr) logprobs_[sequence.index].push_back(*logprobs);
    ++num_tokens_;
    std::vector<int32_t>& answer = answers_[sequence.index];
    if (answer.capacity() == 0) answer.reserve(512);
    answer.push_back(token);
    return false;
  }
  void on_prompt_logprobs(SequenceHandle, std::span<const TokenLogprobs>) override {}
  void on_finished(const Sequence&, const FinishedSequence& how) override {
    num_failed_ += how.reason == FinishReason::kFailed;
  }

 public:
  bool keeps_logprobs = false;
  std::vector<double> idle_seconds, step_seconds;  // of collected steps, as long as the first has room

 private:
  std::unique_ptr<Device> device_;
  LoadedModel loaded_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<ModelExecutor> executor_;
  VotingState voting_;
  std::map<int32_t, std::vector<int32_t>> answers_;
  std::map<int32_t, std::vector<TokenLogprobs>> logprobs_;
  int num_failed_ = 0;
  int in_flight_ = 0;
  int64_t num_tokens_ = 0;
};

inline std::vector<int32_t> random_prompt(uint32_t seed, int64_t length) {
  std::mt19937 random(seed);
  std::vector<int32_t> prompt(length);
  for (int32_t& token : prompt) token = static_cast<int32_t>(random() % 256);
  return prompt;
}

// Requests of every kind: some drawn on a device that can, some on the host, alone and in one batch with the others.
inline std::vector<SamplingParams> kinds_of_sampling() {
  std::vector<SamplingParams> kinds(9);
  kinds[1].temperature = 0;
  kinds[2].temperature = 0.8;
  kinds[2].top_k = 20;
  kinds[2].top_p = 0.9;
  kinds[3].min_p = 0.05;
  kinds[4].frequency_penalty = 0.5;
  kinds[4].repetition_penalty = 1.2;
  kinds[5].logit_bias = {{3, 4.0}, {7, -2.0}};
  kinds[5].logprobs = 2;
  kinds[6].allowed_token_ids = {1, 5, 9, 200};
  kinds[7].logprobs = 3;
  kinds[8].logprobs = 3;
  kinds[8].presence_penalty = 1;
  return kinds;
}

inline std::vector<int32_t> prompt_of(size_t i) { return random_prompt(static_cast<uint32_t>(i), 5 + 9 * (i % 8)); }
inline int64_t answer_length_of(size_t i) { return 10 + 7 * static_cast<int64_t>(i % 4); }

struct Answers {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<TokenLogprobs>> logprobs;
  bool operator==(const Answers&) const = default;
};

// More sequences than slots, so that slots change hands while steps are under way.
inline Answers answers_of(Rig& rig, const std::vector<int>& kinds) {
  rig.keeps_logprobs = true;
  std::vector<SequenceHandle> handles;
  for (size_t i = 0; i < kinds.size(); ++i) {
    handles.push_back(rig.submit(prompt_of(i), answer_length_of(i), kinds_of_sampling()[kinds[i]]));
  }
  while (rig.step()) {
  }
  Answers answers;
  for (const SequenceHandle handle : handles) {
    answers.tokens.push_back(rig.answer(handle));
    answers.logprobs.push_back(rig.logprobs(handle));
  }
  return answers;
}

}  // namespace deepinfer
