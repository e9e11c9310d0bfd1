// The executor on a small model: answers do not depend on who runs beside, and a step in which no sequence starts or
// ends allocates nothing.
#include "runtime/model_executor.h"
#include "allocation_counter.h"

#include <map>
#include <random>

#include <gtest/gtest.h>

#include "backends/cpu/cpu_device.h"
#include "runtime/loaded_model.h"
#include "scheduler/scheduler.h"

namespace deepinfer {
namespace {

// A scheduler, a cache and an executor on a small model, driven step by step, two in flight.
class Rig final : private SequenceObserver {
 public:
  static constexpr int32_t kSlots = 8;

  explicit Rig(const std::string& model = "tiny_full", int num_threads = 2) {
    device_ = make_cpu_device({.num_threads = num_threads}).value();
    // Without a row cache: the queue of its prefetching thread grows at moments that depend on timing.
    loaded_ =
        load_model(*device_, std::string(DEEPINFER_TESTS_DIR) + "/golden/model/" + model, {.engram_cache_rows = 0})
            .value();
    const CacheLayout& layout = loaded_.model->kv_layout().cache;
    const SchedulerOptions options{.max_num_seqs = kSlots, .max_queued = 64, .max_model_len = 512};
    std::vector<int32_t> blocks = Scheduler::least_blocks(layout, options);
    for (size_t g = 0; g < blocks.size(); ++g) blocks[g] *= kSlots;
    cache_ = std::make_unique<KvCache>(layout, KvCacheOptions{.num_blocks = blocks});
    scheduler_ = std::make_unique<Scheduler>(options, *cache_);
    executor_ = std::make_unique<ModelExecutor>(*device_, *loaded_.model, HostBlocks::allocate(layout, blocks).value(),
                                                nullptr, kSlots);
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
  int64_t num_tokens() const { return num_tokens_; }

 private:
  void collect() {
    scheduler_->apply(executor_->collect(), *this);
    --in_flight_;
  }
  bool on_token(SequenceHandle sequence, int32_t token, const TokenLogprobs*) override {
    ++num_tokens_;
    std::vector<int32_t>& answer = answers_[sequence.index];
    if (answer.capacity() == 0) answer.reserve(512);
    answer.push_back(token);
    return false;
  }
  void on_prompt_logprobs(SequenceHandle, std::span<const TokenLogprobs>) override {}
  void on_finished(const Sequence&, const FinishedSequence&) override {}

  std::unique_ptr<Device> device_;
  LoadedModel loaded_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<ModelExecutor> executor_;
  VotingState voting_;
  std::map<int32_t, std::vector<int32_t>> answers_;
  int in_flight_ = 0;
  int64_t num_tokens_ = 0;
};

std::vector<int32_t> random_prompt(uint32_t seed, int64_t length) {
  std::mt19937 random(seed);
  std::vector<int32_t> prompt(length);
  for (int32_t& token : prompt) token = static_cast<int32_t>(random() % 256);
  return prompt;
}

TEST(ModelExecutor, AnAnswerIsTheSameAloneAndBesideOthers) {
  std::vector<std::vector<int32_t>> alone;
  for (uint32_t i = 0; i < Rig::kSlots; ++i) {
    Rig rig;
    const SequenceHandle handle = rig.submit(random_prompt(i, 5 + 9 * i), 30);
    while (rig.step()) {
    }
    alone.push_back(rig.answer(handle));
    EXPECT_EQ(alone.back().size(), 30u);
  }
  Rig rig;
  std::vector<SequenceHandle> handles;
  for (uint32_t i = 0; i < Rig::kSlots; ++i) handles.push_back(rig.submit(random_prompt(i, 5 + 9 * i), 30));
  while (rig.step()) {
  }
  for (uint32_t i = 0; i < Rig::kSlots; ++i) EXPECT_EQ(rig.answer(handles[i]), alone[i]) << "sequence " << i;
}

// Allocations of 150 steps in which every slot decodes. One thread computes: kernels keep buffers a thread, and which
// thread gets the largest part of a step for the first time is a matter of timing.
int64_t steady_allocations(const std::string& model) {
  Rig rig(model, 1);
  SamplingParams plain, filtered, penalised;
  filtered.temperature = 0.8;
  filtered.top_p = 0.9;
  filtered.top_k = 50;
  penalised.frequency_penalty = 0.5;
  penalised.repetition_penalty = 1.1;
  penalised.logprobs = 5;
  const SamplingParams kinds[] = {plain, filtered, penalised};
  for (uint32_t i = 0; i < Rig::kSlots; ++i) rig.submit(random_prompt(i, 20 + i), 300, kinds[i % 3]);
  while (rig.num_decoding() < Rig::kSlots) rig.step();
  for (int i = 0; i < 70; ++i) rig.step();  // buffers reach their size
  const int64_t tokens = rig.num_tokens(), before = allocation_count;
  for (int i = 0; i < 150; ++i) rig.step();
  const int64_t allocations = allocation_count - before;
  EXPECT_EQ(rig.num_tokens() - tokens, 150 * Rig::kSlots);
  return allocations;
}

TEST(ModelExecutor, ASteadyDecodeStepAllocatesNothing) { EXPECT_EQ(steady_allocations("tiny_noengram"), 0); }

TEST(ModelExecutor, ASteadyDecodeStepWithEngramAllocatesNothing) { EXPECT_EQ(steady_allocations("tiny_full"), 0); }

}  // namespace
}  // namespace deepinfer
