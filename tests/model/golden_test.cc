// The forward pass against recorded logits: three small checkpoints in the released format, with logits in exact
// arithmetic and with the vendor's roundings. And the promise: how tokens are cut into steps changes no bit.
#include <random>

#include "model/golden_run.h"

namespace deepinfer {
namespace {

class Golden : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, Golden, testing::Values("tiny_full", "tiny_noengram", "tiny_smooth"),
                         [](const auto& named) { return std::string(named.param); });

TEST_P(Golden, ExactNumericsGiveTheExactLogits) {
  GoldenModel model(GetParam(), Numerics::kExact);
  expect_exact_logits(*model, GetParam());
}

TEST_P(Golden, OfficialNumericsGiveTheVendorsLogitsWithinRounding) {
  GoldenModel model(GetParam(), Numerics::kOfficial);
  expect_official_logits(*model, GetParam());
}

TEST_P(Golden, NoCutIntoStepsChangesABit) {
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kBf16Activations, Numerics::kExact}) {
    GoldenModel model(GetParam(), numerics);
    ASSERT_NO_FATAL_FAILURE(expect_no_cut_changes_a_bit(*model, GetParam()));
  }
}

// All prompts at once, each advancing by a random number of tokens a step, some pausing: the same bits as alone.
TEST_P(Golden, NoBatchMateChangesABit) {
  GoldenModel model(GetParam(), Numerics::kOfficial);
  const std::vector<GoldenPrompt> prompts = read_golden(GetParam());
  std::mt19937 random(7);
  const int64_t vocab = model->config().vocab_size;
  for (int round = 0; round < 4; ++round) {
    std::vector<SequenceState> states;
    std::vector<std::vector<int32_t>> tokens;
    std::vector<std::vector<Row>> rows(prompts.size());
    for (const GoldenPrompt& prompt : prompts) {
      states.push_back(model->make_sequence());
      tokens.push_back(prompt.all());
    }
    while (true) {
      std::vector<SequenceStep> steps;
      std::vector<size_t> who;
      bool unfinished = false;
      for (size_t i = 0; i < prompts.size(); ++i) {
        const size_t left = tokens[i].size() - states[i].length();
        unfinished |= left > 0;
        const size_t count = std::min<size_t>(left, random() % 6);
        if (count == 0) continue;
        steps.push_back({&states[i], std::span(tokens[i]).subspan(states[i].length(), count), LogitRows::kAll});
        who.push_back(i);
      }
      if (!unfinished) break;
      std::vector<float> logits;
      ASSERT_TRUE(model->forward(steps, logits).ok());
      const float* row = logits.data();
      for (size_t s = 0; s < steps.size(); ++s) {
        for (size_t t = 0; t < steps[s].tokens.size(); ++t, row += vocab) rows[who[s]].emplace_back(row, row + vocab);
      }
    }
    for (size_t i = 0; i < prompts.size(); ++i) ASSERT_EQ(rows[i], run(*model, tokens[i], {1000})) << "prompt " << i;
  }
}

TEST_P(Golden, AfterRollingBackTheSameTokensGiveTheSameBits) {
  GoldenModel model(GetParam(), Numerics::kOfficial);
  std::mt19937 random(3);
  for (const GoldenPrompt& golden : read_golden(GetParam())) {
    const std::vector<int32_t> tokens = golden.all();
    const std::vector<Row> whole = run(*model, tokens, {1000});
    SequenceState state = model->make_sequence(/*max_rollback=*/4);
    int64_t longest = 0;
    std::vector<float> logits;
    while (state.length() < static_cast<int64_t>(tokens.size())) {
      // Some wrong tokens first, rolled back again, as a rejected draft would be.
      const int64_t room = 4 - (longest - state.length());
      const int64_t wrong = std::min<int64_t>(room, random() % 5);
      if (wrong > 0) {
        std::vector<int32_t> draft(wrong);
        for (int32_t& token : draft) token = static_cast<int32_t>(random() % model->config().vocab_size);
        const SequenceStep step{&state, draft, LogitRows::kNone};
        ASSERT_TRUE(model->forward({&step, 1}, logits).ok());
        longest = std::max(longest, state.length());
        ASSERT_TRUE(state.roll_back(wrong).ok());
      }
      const int64_t count = std::min<int64_t>(1 + random() % 3, tokens.size() - state.length());
      const int64_t begin = state.length();
      const SequenceStep step{&state, std::span(tokens).subspan(begin, count), LogitRows::kLast};
      ASSERT_TRUE(model->forward({&step, 1}, logits).ok());
      longest = std::max(longest, state.length());
      ASSERT_EQ(logits, whole[begin + count - 1]) << "token " << begin + count - 1;
    }
  }
}

TEST_P(Golden, EveryKernelSetThatPromisesTheSameBitsGivesThem) {
  const GoldenPrompt golden = read_golden(GetParam()).back();
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
    GoldenModel reference(GetParam(), numerics, "reference", 1);
    const std::vector<Row> expected = run(*reference, golden.all(), {11});
    for (const char* kernels : {"avx2", "avx512"}) {
      if (!make_cpu_device({.kernels = kernels}).ok()) continue;  // this processor lacks the instructions
      for (const int threads : {1, 3}) {
        GoldenModel model(GetParam(), numerics, kernels, threads);
        EXPECT_EQ(run(*model, golden.all(), {11}), expected) << kernels << ", " << threads << " threads";
      }
    }
  }
}

TEST(SequenceState, RefusesToRollBackFurtherThanItKeptRows) {
  GoldenModel model("tiny_full", Numerics::kOfficial);
  SequenceState state = model->make_sequence(/*max_rollback=*/2);
  const std::vector<int32_t> tokens(20, 5);
  std::vector<float> logits;
  const SequenceStep step{&state, tokens, LogitRows::kLast};
  ASSERT_TRUE(model->forward({&step, 1}, logits).ok());
  EXPECT_FALSE(state.roll_back(3).ok());
  EXPECT_FALSE(state.roll_back(-1).ok());
  EXPECT_TRUE(state.roll_back(1).ok());
  EXPECT_FALSE(state.roll_back(2).ok()) << "two together are three";
  EXPECT_TRUE(state.roll_back(1).ok());
  EXPECT_EQ(state.length(), 18);
}

}  // namespace
}  // namespace deepinfer
