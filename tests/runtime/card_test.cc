// The executor on a CUDA card, which draws tokens there and is given the next step while one runs: answers are those of
// a request alone, greedy ones those of the logits, and a steady step allocates nothing. Skipped, with a sentence,
// where there is no card.
#include <algorithm>

#include "allocation_counter.h"

#include "backends/backends.h"
#include "runtime/executor_rig.h"

namespace deepinfer {
namespace {

std::unique_ptr<Device> card() { return make_device({.name = "cuda", .gpu_memory_utilization = 0.2}).value(); }

#define SKIP_WITHOUT_A_CARD()                                                                         \
  if (const auto device = make_device({.name = "cuda", .gpu_memory_utilization = 0.1}); !device.ok()) \
  GTEST_SKIP() << "no card to run on: " << device.status().message()

TEST(CardExecutor, AnAnswerIsTheSameAloneAndBesideOthersOfEveryKind) {
  SKIP_WITHOUT_A_CARD();
  for (const char* model : {"tiny", "tiny_noengram"}) {
    std::vector<int> kinds(27);
    for (size_t i = 0; i < kinds.size(); ++i) kinds[i] = static_cast<int>(i * 4 % 9);
    Rig rig(card(), model);
    const Answers together = answers_of(rig, kinds);
    for (size_t i = 0; i < kinds.size(); ++i) {
      Rig alone(card(), model);
      alone.keeps_logprobs = true;
      const SequenceHandle handle = alone.submit(prompt_of(i), answer_length_of(i), kinds_of_sampling()[kinds[i]]);
      while (alone.step()) {
      }
      EXPECT_EQ(alone.answer(handle), together.tokens[i]) << model << ", sequence " << i << ", kind " << kinds[i];
      EXPECT_EQ(alone.logprobs(handle), together.logprobs[i]) << model << ", sequence " << i;
    }
  }
}

TEST(CardExecutor, AGreedyAnswerIsTheLargestLogits) {
  SKIP_WITHOUT_A_CARD();
  SamplingParams greedy;
  greedy.temperature = 0;
  Rig rig(card(), "tiny");
  const std::vector<int32_t> prompt = random_prompt(5, 30);
  const SequenceHandle handle = rig.submit(prompt, 200, greedy);
  while (rig.step()) {
  }
  GoldenModel model("tiny", Numerics::kOfficial, card());
  std::vector<int32_t> tokens = prompt;
  tokens.insert(tokens.end(), rig.answer(handle).begin(), rig.answer(handle).end());
  SequenceState state = model->make_sequence();
  std::vector<float> logits;
  const SequenceStep step{&state, std::span(tokens).first(tokens.size() - 1), LogitRows::kAll};
  ASSERT_TRUE(model->forward({&step, 1}, logits).ok());
  const int64_t vocab = model->config().vocab_size;
  for (size_t i = prompt.size(); i < tokens.size(); ++i) {
    EXPECT_EQ(tokens[i], argmax({logits.data() + (i - 1) * vocab, static_cast<size_t>(vocab)})) << "token " << i;
  }
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

TEST(CardExecutor, ASteadyDecodeStepAllocatesNothing) {
  SKIP_WITHOUT_A_CARD();
  for (const char* model : {"tiny", "tiny_noengram"}) {
    Rig rig(card(), model);
    for (uint32_t i = 0; i < Rig::kSlots; ++i) rig.submit(random_prompt(i, 20 + i), 400, kinds_of_sampling()[i % 4]);
    while (rig.num_decoding() < Rig::kSlots) rig.step();
    for (int i = 0; i < 70; ++i) rig.step();
    rig.step_seconds.reserve(200), rig.idle_seconds.reserve(200);
    const int64_t tokens = rig.num_tokens(), before = allocation_count;
    for (int i = 0; i < 200; ++i) rig.step();
    EXPECT_EQ(allocation_count - before, 0) << model;
    EXPECT_EQ(rig.num_tokens() - tokens, 200 * Rig::kSlots);
    std::printf("%s, %d sequences: step %.1f us, device idle between steps %.1f us (medians)\n", model, Rig::kSlots,
                1e6 * median(rig.step_seconds), 1e6 * median(rig.idle_seconds));
  }
}

}  // namespace
}  // namespace deepinfer
