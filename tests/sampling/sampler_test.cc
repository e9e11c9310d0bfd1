#include "sampling/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <set>

#include <gtest/gtest.h>

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
  EXPECT_EQ(sampler.sample(logits, 5, {.temperature = 0}, 9), 1);
}

TEST(Sampler, TopKOfOneIsGreedyAlsoWithTies) {
  Sampler sampler;
  const std::vector<float> logits = {0, 3, 1, 3, 3};
  for (int position = 0; position < 100; ++position) {
    EXPECT_EQ(sampler.sample(logits, position, {.temperature = 2, .top_k = 1}, 0), 1);
  }
}

TEST(Sampler, FiltersKeepExactlyTheirTokens) {
  Sampler sampler;
  std::vector<float> logits(50, -30.0f);
  logits[10] = std::log(0.5f), logits[20] = std::log(0.3f), logits[30] = std::log(0.15f), logits[40] = std::log(0.05f);
  const auto seen = [&](const SamplingParams& params) {
    std::vector<int32_t> ids;
    for (int position = 0; position < 3000; ++position) {
      const int32_t id = sampler.sample(logits, position, params, 0);
      if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
    }
    std::sort(ids.begin(), ids.end());
    return ids;
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(seen({.top_k = 3}), (Ids{10, 20, 30}));
  EXPECT_EQ(seen({.top_k = -1}), seen({}));
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
    ++counts[sampler.sample(logits, position, {.temperature = temperature}, 0)];
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
    const SamplingParams params{.temperature = 0.1 + 0.05 * round};
    const uint64_t key = round * 77;
    int32_t best = 0;
    double best_score = -INFINITY;
    for (int32_t id = 0; id < 500; ++id) {
      const double score = logits[id] / params.temperature - std::log(-std::log(uniform_at(key, round, id)));
      if (score > best_score) best = id, best_score = score;
    }
    EXPECT_EQ(sampler.sample(logits, round, params, key), best);
  }
}

TEST(Sampler, TheChoiceDependsOnSeedAndPositionAlone) {
  Sampler first, second;
  const std::vector<float> logits = random_logits(1000, 5);
  int different = 0;
  for (int position = 0; position < 100; ++position) {
    const SamplingParams params{.temperature = 1.5, .top_p = 0.95};
    const int32_t id = first.sample(logits, position, params, 11);
    second.sample(random_logits(300, position), 99 - position, {}, 4);  // other traffic in between
    EXPECT_EQ(second.sample(logits, position, params, 11), id);
    different += first.sample(logits, position + 1, params, 11) != id;
  }
  EXPECT_GT(different, 50);
}

// The plainest reading of the filters: sort everything, cut, then Gumbel-max.
int32_t plain_choice(std::span<const float> logits, int64_t position, const SamplingParams& params, uint64_t key) {
  std::vector<int32_t> ids(logits.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  const auto weight = [&](int32_t id) { return std::exp((double{logits[id]} - logits[ids[0]]) / params.temperature); };
  std::erase_if(ids, [&](int32_t id) { return weight(id) < params.min_p; });
  if (params.top_k > 0 && params.top_k < static_cast<int64_t>(ids.size())) ids.resize(params.top_k);
  double total = 0, sum = 0;
  for (const int32_t id : ids) total += weight(id);
  size_t kept = 0;
  while (kept < ids.size() && sum < params.top_p * total) sum += weight(ids[kept++]);
  int32_t best = -1;
  double best_score = -INFINITY;
  for (size_t i = 0; i < kept; ++i) {
    const double score = logits[ids[i]] / params.temperature - std::log(-std::log(uniform_at(key, position, ids[i])));
    if (score > best_score || (score == best_score && ids[i] < best)) best = ids[i], best_score = score;
  }
  return best;
}

TEST(Sampler, EqualsThePlainFiltersForRandomSettings) {
  Sampler sampler;
  std::mt19937 random(3);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (uint32_t round = 0; round < 400; ++round) {
    const std::vector<float> logits = random_logits(1 + random() % 3000, round);
    const SamplingParams params{.temperature = 0.2 + 2 * uniform(random),
                                .top_p = random() % 3 == 0 ? 1.0 : 0.05 + 0.95 * uniform(random),
                                .top_k = random() % 3 == 0 ? 0 : 1 + static_cast<int64_t>(random() % 500),
                                .min_p = random() % 3 == 0 ? 0.1 * uniform(random) : 0.0};
    EXPECT_EQ(sampler.sample(logits, round, params, round), plain_choice(logits, round, params, round))
        << "temperature " << params.temperature << ", top_p " << params.top_p << ", top_k " << params.top_k
        << ", min_p " << params.min_p << ", " << logits.size() << " tokens";
  }
}

TEST(Sampler, MoreTokensWithoutProbabilityChangeNothing) {
  Sampler sampler;
  std::mt19937 random(4);
  for (uint32_t round = 0; round < 200; ++round) {
    std::vector<float> logits = random_logits(1 + random() % 700, round);
    const SamplingParams params{.temperature = round % 5 == 0 ? 0.0 : 1.3,
                                .top_p = round % 3 == 0 ? 1.0 : 0.9,
                                .top_k = round % 2 == 0 ? 0 : 40,
                                .min_p = round % 7 == 0 ? 0.02 : 0.0};
    const int32_t expected = sampler.sample(logits, round, params, 1);
    logits.resize(logits.size() + random() % 300, -INFINITY);
    EXPECT_EQ(sampler.sample(logits, round, params, 1), expected);
  }
}

TEST(Sampler, GivesTokenZeroIfEveryTokenIsBanned) {
  Sampler sampler;
  const std::vector<float> logits(70, -INFINITY);
  for (const double top_p : {1.0, 0.5}) EXPECT_EQ(sampler.sample(logits, 3, {.top_p = top_p}, 5), 0);
}

TEST(Argmax, TakesTheLowestIdOfTheLargestLogitsAtEveryLengthAndPlace) {
  for (size_t size = 1; size < 140; ++size) {
    std::vector<float> logits(size, -3.0f);
    for (size_t place = size; place-- > 0;) {  // each time one more, further left
      logits[place] = 2.5f;
      ASSERT_EQ(argmax(logits), static_cast<int32_t>(place)) << "of " << size;
    }
  }
}

TEST(ChoiceKey, IsTheSeedForTheFirstChoiceAndDistinctForTheOthers) {
  std::set<uint64_t> keys;
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{7}, ~uint64_t{0}, uint64_t{1} << 63}) {
    EXPECT_EQ(choice_key(seed, 0), seed);
    for (int32_t choice = 0; choice < 128; ++choice) keys.insert(choice_key(seed, choice));
  }
  EXPECT_EQ(keys.size(), 5u * 128);
  // Fixed for ever: a stored seed has to give the same answers.
  EXPECT_EQ(choice_key(0, 1), 0xE220A8397B1DCDAFu);
  EXPECT_EQ(choice_key(0, 2), 0x6E789E6AA1B965F4u);
}

}  // namespace
}  // namespace deepinfer
