// The forward pass on a CUDA card: the recorded logits, the CPU's tokens, and the promise that nothing but a sequence's
// own tokens changes a bit of it: no cut into steps, no batch mate, no place in a batch, no padding of a recorded step.
// Skipped, with a sentence, where there is no card.
#include <numeric>
#include <random>

#include "backends/backends.h"
#include "model/golden_run.h"

namespace deepinfer {
namespace {

std::unique_ptr<Device> card() { return make_device({.name = "cuda", .gpu_memory_utilization = 0.5}).value(); }

#define SKIP_WITHOUT_A_CARD()                                                                         \
  if (const auto device = make_device({.name = "cuda", .gpu_memory_utilization = 0.1}); !device.ok()) \
  GTEST_SKIP() << "no card to run on: " << device.status().message()

class Card : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, Card, testing::Values("tiny_full", "tiny_noengram", "tiny_smooth"),
                         [](const auto& named) { return std::string(named.param); });

TEST_P(Card, ExactNumericsGiveTheExactLogits) {
  SKIP_WITHOUT_A_CARD();
  GoldenModel model(GetParam(), Numerics::kExact, card());
  expect_exact_logits(*model, GetParam());
}

TEST_P(Card, OfficialNumericsGiveTheVendorsLogitsWithinRounding) {
  SKIP_WITHOUT_A_CARD();
  GoldenModel model(GetParam(), Numerics::kOfficial, card());
  expect_official_logits(*model, GetParam());
}

TEST_P(Card, NoCutIntoStepsChangesABit) {
  SKIP_WITHOUT_A_CARD();
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kBf16Activations, Numerics::kExact}) {
    GoldenModel model(GetParam(), numerics, card());
    ASSERT_NO_FATAL_FAILURE(expect_no_cut_changes_a_bit(*model, GetParam()));
  }
}

TEST_P(Card, AfterRollingBackTheSameTokensGiveTheSameBits) {
  SKIP_WITHOUT_A_CARD();
  GoldenModel model(GetParam(), Numerics::kOfficial, card());
  const GoldenPrompt golden = read_golden(GetParam()).back();
  const std::vector<int32_t> tokens = golden.all();
  const std::vector<Row> whole = run(*model, tokens, {1000});
  SequenceState state = model->make_sequence(/*max_rollback=*/3);
  std::vector<float> logits;
  for (size_t begin = 0; begin < tokens.size(); ++begin) {
    const std::vector<int32_t> draft = {1, static_cast<int32_t>(begin % 100), 7};
    const SequenceStep wrong{&state, draft, LogitRows::kNone};
    ASSERT_TRUE(model->forward({&wrong, 1}, logits).ok());
    ASSERT_TRUE(state.roll_back(3).ok());
    const SequenceStep step{&state, std::span(tokens).subspan(begin, 1), LogitRows::kLast};
    ASSERT_TRUE(model->forward({&step, 1}, logits).ok());
    ASSERT_EQ(logits, whole[begin]) << "token " << begin;
  }
}

// --- batches -------------------------------------------------------------------------------------------------------

// Many sequences of different lengths that go on by a token a step, and what each gave alone.
struct Crowd {
  static constexpr int kSteps = 4;  // the first runs, the second records, the others launch the recording

  Crowd(Model& model, int size, uint32_t seed) : model_(model) {
    std::mt19937 random(seed);
    for (int s = 0; s < size; ++s) {
      tokens.push_back(random_tokens(1 + random() % 40 + kSteps, model.config().vocab_size, random()));
      alone.push_back(go(std::vector<int>{s})[0]);
    }
  }

  // Logits of the last kSteps tokens of each of `who`, all of them in one batch.
  std::vector<std::vector<float>> go(const std::vector<int>& who) {
    std::vector<SequenceState> states;
    std::vector<std::vector<float>> result(who.size());
    std::vector<float> logits;
    for (const int s : who) {
      states.push_back(model_.make_sequence());
      const SequenceStep prompt{&states.back(), std::span(tokens[s]).first(tokens[s].size() - kSteps),
                                LogitRows::kNone};
      EXPECT_TRUE(model_.forward({&prompt, 1}, logits).ok());
    }
    for (int i = 0; i < kSteps; ++i) {
      std::vector<SequenceStep> steps;
      for (size_t w = 0; w < who.size(); ++w) {
        const std::vector<int32_t>& t = tokens[who[w]];
        steps.push_back({&states[w], std::span(t).subspan(t.size() - kSteps + i, 1), LogitRows::kLast});
      }
      EXPECT_TRUE(model_.forward(steps, logits).ok());
      const int64_t vocab = model_.config().vocab_size;
      for (size_t w = 0; w < who.size(); ++w) {
        result[w].insert(result[w].end(), logits.begin() + w * vocab, logits.begin() + (w + 1) * vocab);
      }
    }
    return result;
  }

  Model& model_;
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<float>> alone;
};

TEST(CardBatches, NoBatchMateAndNoPlaceInABatchChangesABit) {
  SKIP_WITHOUT_A_CARD();
  for (const char* name : {"tiny_full", "tiny"}) {
    GoldenModel model(name, Numerics::kOfficial, card());
    Crowd crowd(*model, 256, 11);
    for (const int size : {1, 2, 3, 8, 17, 64, 256}) {
      // Every sequence of a batch comes to stand in every place; of large batches, in a few.
      for (int shift = 0; shift < size; shift += size <= 17 ? 1 : size / 3) {
        std::vector<int> who(size);
        for (int i = 0; i < size; ++i) who[i] = (i + shift) % size;
        const std::vector<std::vector<float>> got = crowd.go(who);
        for (int i = 0; i < size; ++i) {
          ASSERT_EQ(got[i], crowd.alone[who[i]])
              << name << ", batch of " << size << ", place " << i << ", sequence " << who[i];
        }
      }
    }
  }
}

TEST(CardBatches, NoChunkOfAPromptChangesABit) {
  SKIP_WITHOUT_A_CARD();
  GoldenModel model("tiny", Numerics::kOfficial, card());
  const std::vector<int32_t> tokens = random_tokens(4400, model->config().vocab_size, 5);
  std::vector<Row> expected;
  for (const size_t chunk : {4096, 511, 64, 1}) {
    SequenceState state = model->make_sequence();
    std::vector<Row> rows;
    std::vector<float> logits;
    for (size_t begin = 0; begin < tokens.size();) {
      // All sizes meet at 4090 tokens and go on by three.
      const size_t end = begin < 4090 ? 4090 : tokens.size();
      const size_t count = std::min(begin < 4090 ? chunk : 3, end - begin);
      const SequenceStep step{&state, std::span(tokens).subspan(begin, count), LogitRows::kLast};
      ASSERT_TRUE(model->forward({&step, 1}, logits).ok());
      begin += count;
      if (begin >= 4090) rows.push_back(logits);
    }
    if (expected.empty()) expected = rows;
    ASSERT_EQ(rows, expected) << "chunks of " << chunk;
  }
}

// --- the CPU's tokens ----------------------------------------------------------------------------------------------

// Greedy text of the CPU, and what the card makes of the same tokens.
struct Agreement {
  Errors errors;
  int same = 0, all = 0;

  Agreement(Numerics numerics, double tolerance) {
    GoldenModel cpu("tiny", numerics);
    GoldenModel model("tiny", numerics, card());
    for (const uint32_t seed : {1u, 2u, 3u, 4u}) {
      std::vector<int32_t> tokens = random_tokens(3, cpu->config().vocab_size, seed);
      SequenceState there = cpu->make_sequence(), here = model->make_sequence();
      std::vector<float> expected, got;
      for (int i = 0; i < 100; ++i) {
        const size_t count = i == 0 ? tokens.size() : 1;
        const SequenceStep on_cpu{&there, std::span(tokens).last(count), LogitRows::kLast};
        const SequenceStep on_card{&here, std::span(tokens).last(count), LogitRows::kLast};
        EXPECT_TRUE(cpu->forward({&on_cpu, 1}, expected).ok());
        EXPECT_TRUE(model->forward({&on_card, 1}, got).ok());
        const std::vector<double> golden(expected.begin(), expected.end());
        errors.all.push_back(relative_error(got, golden));
        EXPECT_LE(errors.all.back(), tolerance) << "seed " << seed << ", token " << i;
        expect_same_argmax(got, golden, tolerance);
        const auto best = std::max_element(expected.begin(), expected.end()) - expected.begin();
        same += best == std::max_element(got.begin(), got.end()) - got.begin();
        ++all;
        tokens.push_back(static_cast<int32_t>(best));
      }
    }
    std::printf("%d of %d greedy tokens are the CPU's; logits differ by at most %.2e, median %.2e\n", same, all,
                errors.largest(), errors.median());
  }
};

TEST(CardTiny, InExactNumericsEveryTokenIsTheCpus) {
  SKIP_WITHOUT_A_CARD();
  const Agreement agreement(Numerics::kExact, 1e-4);
  EXPECT_EQ(agreement.same, agreement.all);
}

TEST(CardTiny, InOfficialNumericsEveryClearTokenIsTheCpus) {
  SKIP_WITHOUT_A_CARD();
  // Roundings to E4M3 and BF16 and choices of experts turn differences of fp32 sums into steps. On this model the
  // reference itself moves by 2.2 % of a row's largest logit in the median when fp32 sums become double ones.
  Agreement agreement(Numerics::kOfficial, 0.12);
  EXPECT_LE(agreement.errors.median(), 0.03);
}

}  // namespace
}  // namespace deepinfer
