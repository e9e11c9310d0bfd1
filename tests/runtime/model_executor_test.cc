// The executor on a small model: answers do not depend on who runs beside nor on the device's memory, blocks go to the
// host and back, and a step in which no sequence starts or ends allocates nothing.
#include "runtime/model_executor.h"
#include "allocation_counter.h"

#include "model/draw_on_host.h"
#include "model/separate_memory_device.h"
#include "runtime/executor_rig.h"

namespace deepinfer {
namespace {

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

TEST(ModelExecutor, AnAnswerIsTheSameOnADeviceWithMemoryOfItsOwn) {
  const auto answers = [](Rig& rig) {
    std::vector<SequenceHandle> handles;
    for (uint32_t i = 0; i < Rig::kSlots; ++i) handles.push_back(rig.submit(random_prompt(i, 5 + 9 * i), 30));
    while (rig.step()) {
    }
    std::vector<std::vector<int32_t>> all;
    for (const SequenceHandle handle : handles) all.push_back(rig.answer(handle));
    return all;
  };
  Rig cpu, separate(std::make_unique<SeparateMemoryDevice>(), "tiny_full");
  EXPECT_EQ(answers(separate), answers(cpu));
}

TEST(ModelExecutor, AnAnswerIsTheSameWhereTheDeviceDrawsTokens) {
  std::mt19937 random(3);
  std::vector<int> drawn(20), mixed(20);
  for (size_t i = 0; i < drawn.size(); ++i) drawn[i] = static_cast<int>(i % 4), mixed[i] = static_cast<int>(i % 9);
  std::shuffle(mixed.begin(), mixed.end(), random);
  for (const auto& [model, kinds] : {std::pair("tiny_full", mixed), std::pair("tiny_noengram", drawn)}) {
    auto device = std::make_unique<SeparateMemoryDevice>(2, draw_on_host);
    SeparateMemoryDevice& separate = *device;
    Rig drawing(std::move(device), model);
    Rig cpu(make_cpu_device({.num_threads = 2}).value(), model);
    const Answers expected = answers_of(cpu, kinds);
    EXPECT_EQ(answers_of(drawing, kinds), expected) << model;
    EXPECT_GT(separate.num_launches(), 20);
  }
}

TEST(ModelExecutor, StepsAreEnqueuedBeforeTheOneBeforeHasRun) {
  auto device = std::make_unique<SeparateMemoryDevice>(2, draw_on_host);
  SeparateMemoryDevice& separate = *device;
  // The largest of the small models: planning a step takes as long as running it with the others.
  Rig rig(std::move(device), "tiny_full");
  for (uint32_t i = 0; i < Rig::kSlots; ++i) rig.submit(random_prompt(i, 20), 100);
  while (rig.num_decoding() < Rig::kSlots) rig.step();
  for (int i = 0; i < 20; ++i) rig.step();
  const int64_t before = separate.num_overlaps();
  for (int i = 0; i < 50; ++i) rig.step();
  // A step is begun when its plan comes, or after the one before if that is through by then.
  EXPECT_GT(separate.num_overlaps() - before, 25);
}

// Draws as usual, but finds the row of one sequence not finite.
constexpr uint64_t kBadKey = 77;
void draw_with_a_bad_row(const ops::SampleArgs& args) {
  draw_on_host(args);
  for (int64_t r = 0; r < args.logits.rows; ++r) {
    const ops::SampleRow& row = args.rows[r];
    if (row.position != 30 || row.key != kBadKey) continue;
    args.tokens[r] = -1;
    args.last_tokens[row.slot] = 0;
  }
}

TEST(ModelExecutor, ARowThatIsNotFiniteOnTheDeviceFailsItsOwnSequence) {
  const auto answers = [](SeparateMemoryDevice::Sample sample, int num_failed) {
    Rig rig(std::make_unique<SeparateMemoryDevice>(2, sample), "tiny_full");
    std::vector<std::vector<int32_t>> all;
    std::vector<SequenceHandle> handles;
    for (int32_t i = 0; i < 6; ++i) {
      std::vector<int32_t> prompt = random_prompt(static_cast<uint32_t>(i), 20);
      prompt[0] = i == 2 ? kBadKey : i;
      handles.push_back(rig.submit(prompt, 25));
    }
    while (rig.step()) {
    }
    EXPECT_EQ(rig.num_failed(), num_failed);
    for (const SequenceHandle handle : handles) all.push_back(rig.answer(handle));
    return all;
  };
  const std::vector<std::vector<int32_t>> good = answers(draw_on_host, 0), bad = answers(draw_with_a_bad_row, 1);
  for (size_t i = 0; i < good.size(); ++i) {
    EXPECT_EQ(bad[i].size(), i == 2 ? 10u : 25u);
    EXPECT_TRUE(std::equal(bad[i].begin(), bad[i].end(), good[i].begin())) << i;
  }
}

// Plans written by hand, with blocks of the host below the device's.
class Blocks {
 public:
  explicit Blocks(std::unique_ptr<Device> device) : device_(std::move(device)) {
    loaded_ = load_model(*device_, std::string(DEEPINFER_TESTS_DIR) + "/golden/model/tiny_full", {}).value();
    const std::vector<int32_t> counts(layout().groups.size(), 3 * kBlocks);
    HostBlocks::Memory memory = HostBlocks::map_memory;
    if (!device_->shares_host_memory()) memory = [this](int64_t bytes) { return device_->allocate_pinned(bytes); };
    host_ = HostBlocks::allocate(layout(), counts, memory).value();
    executor_ = std::make_unique<ModelExecutor>(
        *device_, *loaded_.model, DeviceBlocks::allocate(*device_, layout(), counts).value(), host_.get(), 2);
    input_.tokens = random_prompt(1, 200);
    input_.num_prompt_tokens = 199;
    input_.max_tokens_total = 220;
    input_.params.temperature = 0;
    input_.params.logprobs = 5;
  }

  // The slot holds `length` tokens, in blocks from `first_block` of each group on.
  void start(StepPlan& plan, int32_t slot, int64_t length, int32_t first_block) {
    plan.starts.push_back({{slot, 1}, &input_, length, input_.tokens});
    for_each_block([&](int32_t group, int32_t number) {
      plan.block_edits.push_back({slot, group, number, first_block + number});
    });
  }
  void feed(StepPlan& plan, int32_t slot, int64_t begin, int64_t end) {
    plan.items.push_back({.slot = {slot, 1},
                          .begin = begin,
                          .tokens = std::span(input_.tokens).subspan(begin, end - begin),
                          .samples = end == 200});
  }
  void transfer(StepPlan& plan, BlockTransfer::Direction direction, int32_t first_block) {
    for_each_block([&](int32_t group, int32_t number) {
      plan.transfers.push_back(
          {.group = group, .device_block = first_block + number, .host_block = number, .direction = direction});
    });
  }
  void copy(StepPlan& plan, int32_t from, int32_t to) {
    for_each_block([&](int32_t group, int32_t number) { plan.copies.push_back({group, from + number, to + number}); });
  }
  ModelExecutor& executor() { return *executor_; }
  // What was sampled, with its log-probabilities.
  TokenLogprobs run(StepPlan& plan) {
    plan.id = ++steps_;
    executor_->launch(plan);
    const StepResult& result = executor_->collect();
    EXPECT_EQ(result.error, "");
    return result.num_logprobs > 0 ? result.logprobs[0] : TokenLogprobs();
  }

  static constexpr int32_t kBlocks = 16;

 private:
  const CacheLayout& layout() { return loaded_.model->kv_layout().cache; }
  template <typename Body>
  void for_each_block(Body&& body) {
    for (size_t g = 0; g < layout().groups.size(); ++g) {
      const auto count =
          static_cast<int32_t>((221 + layout().groups[g].tokens_per_block - 1) / layout().groups[g].tokens_per_block);
      for (int32_t number = 0; number < count; ++number) body(static_cast<int32_t>(g), number);
    }
  }

  std::unique_ptr<Device> device_;
  LoadedModel loaded_;
  std::unique_ptr<HostBlocks> host_;
  std::unique_ptr<ModelExecutor> executor_;
  SequenceInput input_;
  int64_t steps_ = 0;
};

TEST(ModelExecutor, ASequenceGoesOnFromBlocksThatWereSavedLoadedAndCopied) {
  std::vector<TokenLogprobs> answers;
  for (const bool separate : {false, true}) {
    Blocks blocks(separate ? std::make_unique<SeparateMemoryDevice>() : make_cpu_device({.num_threads = 2}).value());
    StepPlan prompt, save, load, copy, rest;
    blocks.start(prompt, 0, 0, 0);
    blocks.feed(prompt, 0, 0, 150);
    blocks.run(prompt);
    blocks.transfer(save, BlockTransfer::Direction::kSave, 0);  // without items, as a placeholder step
    blocks.run(save);
    blocks.feed(rest, 0, 150, 200);
    answers.push_back(blocks.run(rest));
    EXPECT_EQ(answers.back().best.size(), 5u);

    blocks.transfer(load, BlockTransfer::Direction::kLoad, Blocks::kBlocks);
    blocks.start(load, 1, 150, Blocks::kBlocks);
    blocks.feed(load, 1, 150, 200);
    answers.push_back(blocks.run(load));
    blocks.copy(copy, Blocks::kBlocks, 2 * Blocks::kBlocks);
    blocks.start(copy, 0, 150, 2 * Blocks::kBlocks);
    blocks.feed(copy, 0, 150, 200);
    answers.push_back(blocks.run(copy));
  }
  for (const TokenLogprobs& answer : answers) EXPECT_EQ(answer, answers[0]);
}

TEST(ModelExecutor, AfterAFailureEveryStepInFlightTellsIt) {
  for (const bool draws : {false, true}) {
    auto device = std::make_unique<SeparateMemoryDevice>(2, draws ? draw_on_host : nullptr);
    SeparateMemoryDevice& separate = *device;
    Blocks blocks(std::move(device));
    StepPlan first, second, third;
    blocks.start(first, 0, 0, 0);
    blocks.feed(first, 0, 0, 10);
    blocks.run(first);
    separate.set_limit(separate.used_bytes());
    blocks.feed(second, 0, 10, 150);  // needs more memory than a step of ten tokens
    second.id = 2;
    blocks.feed(third, 0, 150, 200);
    third.id = 3;
    blocks.executor().launch(second);
    blocks.executor().launch(third);
    for (const int64_t id : {2, 3}) {
      const StepResult& result = blocks.executor().collect();
      EXPECT_EQ(result.id, id);
      EXPECT_NE(result.error.find("are free"), std::string::npos) << result.error;
      EXPECT_EQ(result.items.size(), 1u);
    }
  }
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
