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
  Errors errors;
  for (const GoldenPrompt& golden : read_golden(GetParam())) {
    const std::vector<Row> rows = run(*model, golden.all(), {1000});
    for (size_t i = 0; i < golden.exact.size(); ++i) {
      const Row& row = rows[golden.prompt.size() - 1 + i];
      errors.all.push_back(relative_error(row, golden.exact[i]));
      EXPECT_LE(errors.all.back(), 1e-4) << "prompt of " << golden.prompt.size() << ", row " << i;
    }
  }
  std::printf("%s exact: largest %.2e, median %.2e\n", GetParam(), errors.largest(), errors.median());
}

TEST_P(Golden, OfficialNumericsGiveTheVendorsLogitsWithinRounding) {
  // tiny_smooth makes no discrete choice; in the others a rounding can flip one.
  const bool smooth = std::string(GetParam()) == "tiny_smooth";
  GoldenModel model(GetParam(), Numerics::kOfficial);
  Errors errors;
  for (const GoldenPrompt& golden : read_golden(GetParam())) {
    const std::vector<Row> rows = run(*model, golden.all(), {1000});
    for (size_t i = 0; i < golden.official.size(); ++i) {
      const Row& row = rows[golden.prompt.size() - 1 + i];
      errors.all.push_back(relative_error(row, golden.official[i]));
      EXPECT_LE(errors.all.back(), smooth ? 0.015 : 0.06) << "prompt of " << golden.prompt.size() << ", row " << i;
      expect_same_argmax(row, golden.official[i], 0.06);
    }
  }
  std::printf("%s official: largest %.2e, median %.2e\n", GetParam(), errors.largest(), errors.median());
  EXPECT_LE(errors.median(), smooth ? 0.005 : 0.015);
}

TEST_P(Golden, NoCutIntoStepsChangesABit) {
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kBf16Activations, Numerics::kExact}) {
    GoldenModel model(GetParam(), numerics);
    for (const GoldenPrompt& golden : read_golden(GetParam())) {
      const std::vector<int32_t> tokens = golden.all();
      const std::vector<Row> whole = run(*model, tokens, {1000});
      const int prompt = static_cast<int>(golden.prompt.size());
      for (const std::vector<int>& sizes :
           std::vector<std::vector<int>>{{1}, {2}, {3}, {7, 1, 1, 20}, {5, 8}, {prompt, 1}, {prompt, 3}, {1, 1000}}) {
        ASSERT_EQ(run(*model, tokens, sizes), whole) << "prompt of " << prompt << ", first step " << sizes[0];
      }
    }
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
