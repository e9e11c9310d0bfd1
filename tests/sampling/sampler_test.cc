#include "sampling/sampler.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "sampling/logprobs.h"
#include "sampling/philox.h"

namespace deepinfer {
namespace {

std::vector<float> random_logits(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<float> logits(size);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

// Known answers of Philox4x32-10, published with the generator (Random123, kat_vectors).
TEST(Philox, GivesThePublishedAnswers) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(philox(0, {0, 0, 0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~uint64_t{0}, {~0u, ~0u, ~0u, ~0u}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformNumbersStayInsideTheOpenInterval) {
  double smallest = 1, largest = 0, sum = 0;
  for (int id = 0; id < 100000; ++id) {
    const double u = uniform_at(7, 3, id);
    smallest = std::min(smallest, u);
    largest = std::max(largest, u);
    sum += u;
  }
  EXPECT_GT(smallest, 0);
  EXPECT_LT(largest, 1);
  EXPECT_NEAR(sum / 100000, 0.5, 0.005);
}

TEST(Sampler, ZeroTemperatureTakesTheBestTokenAndTiesGoToTheLowestId) {
  Sampler sampler;
  const std::vector<float> logits = {0, 3, 1, 3, 3};
  EXPECT_EQ(sampler.sample(logits, 5, {.temperature = 0, .seed = 9}), 1);
}

TEST(Sampler, TopKOfOneIsGreedyAlsoWithTies) {
  Sampler sampler;
  const std::vector<float> logits = {0, 3, 1, 3, 3};
  for (int position = 0; position < 100; ++position) {
    EXPECT_EQ(sampler.sample(logits, position, {.temperature = 2, .top_k = 1}), 1);
  }
}

TEST(Sampler, FiltersKeepExactlyTheirTokens) {
  Sampler sampler;
  std::vector<float> logits(50, -30.0f);
  logits[10] = std::log(0.5f), logits[20] = std::log(0.3f), logits[30] = std::log(0.15f), logits[40] = std::log(0.05f);
  const auto seen = [&](SamplingParams params) {
    std::vector<int32_t> ids;
    for (int position = 0; position < 3000; ++position) {
      const int32_t id = sampler.sample(logits, position, params);
      if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
    }
    std::sort(ids.begin(), ids.end());
    return ids;
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(seen({.top_k = 3}), (Ids{10, 20, 30}));
  EXPECT_EQ(seen({.top_p = 0.79}), (Ids{10, 20}));
  EXPECT_EQ(seen({.top_p = 0.81}), (Ids{10, 20, 30}));
  EXPECT_EQ(seen({.min_p = 0.55}), (Ids{10, 20}));
  EXPECT_EQ(seen({.min_p = 0.05}), (Ids{10, 20, 30, 40}));
  EXPECT_EQ(seen({.top_p = 1e-9}), (Ids{10}));
}

TEST(Sampler, SampledFrequenciesFollowTheSoftmax) {
  Sampler sampler;
  const std::vector<float> logits = {0.0f, 1.0f, -1.0f, 0.5f};
  const double temperature = 0.7;
  std::vector<double> expected(4);
  double total = 0;
  for (int i = 0; i < 4; ++i) total += expected[i] = std::exp(logits[i] / temperature);
  std::vector<int> counts(4);
  constexpr int kDraws = 40000;
  for (int position = 0; position < kDraws; ++position)
    ++counts[sampler.sample(logits, position, {.temperature = temperature})];
  for (int i = 0; i < 4; ++i) {
    const double p = expected[i] / total;
    EXPECT_NEAR(counts[i] / double{kDraws}, p, 5 * std::sqrt(p * (1 - p) / kDraws)) << i;
  }
}

// The skipping of hopeless tokens must change nothing.
TEST(Sampler, EqualsPlainGumbelMaxOverAllTokens) {
  Sampler sampler;
  for (uint32_t round = 0; round < 200; ++round) {
    const std::vector<float> logits = random_logits(500, round);
    const SamplingParams params{.temperature = 0.1 + 0.05 * round, .seed = round * 77};
    int32_t best = 0;
    double best_score = -INFINITY;
    for (int32_t id = 0; id < 500; ++id) {
      const double score = logits[id] / params.temperature - std::log(-std::log(uniform_at(params.seed, round, id)));
      if (score > best_score) best = id, best_score = score;
    }
    EXPECT_EQ(sampler.sample(logits, round, params), best);
  }
}

TEST(Sampler, TheChoiceDependsOnSeedAndPositionAlone) {
  Sampler first, second;
  const std::vector<float> logits = random_logits(1000, 5);
  int different = 0;
  for (int position = 0; position < 100; ++position) {
    const SamplingParams params{.temperature = 1.5, .top_p = 0.95, .seed = 11};
    const int32_t id = first.sample(logits, position, params);
    second.sample(random_logits(300, position), 99 - position, {.seed = 4});  // other traffic in between
    EXPECT_EQ(second.sample(logits, position, params), id);
    different += first.sample(logits, position + 1, params) != id;
  }
  EXPECT_GT(different, 50);
}

TEST(SamplingParams, RefusesEachFieldOutsideItsRangeByName) {
  const auto message = [](SamplingParams params) {
    const Status status = params.validate();
    return status.ok() ? std::string() : status.message();
  };
  EXPECT_EQ(message({}), "");
  EXPECT_NE(message({.temperature = -1}).find("temperature -1"), std::string::npos);
  EXPECT_NE(message({.temperature = NAN}).find("temperature"), std::string::npos);
  EXPECT_NE(message({.top_k = -2}).find("top_k -2"), std::string::npos);
  EXPECT_NE(message({.top_p = 0}).find("top_p 0"), std::string::npos);
  EXPECT_NE(message({.top_p = 1.5}).find("top_p 1.5"), std::string::npos);
  EXPECT_NE(message({.min_p = 2}).find("min_p 2"), std::string::npos);
}

TEST(Logprobs, SumToOne) {
  const std::vector<float> logits = random_logits(300, 1);
  double sum = 0;
  for (int32_t id = 0; id < 300; ++id) sum += std::exp(logprob(logits, id));
  EXPECT_NEAR(sum, 1, 1e-12);
}

}  // namespace
}  // namespace deepinfer
