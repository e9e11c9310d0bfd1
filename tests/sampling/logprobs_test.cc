#include "sampling/logprobs.h"

#include <random>

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

// Coarse values, so that ties are common.
std::vector<float> random_logits(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<float> logits(size);
  for (float& logit : logits) logit = std::round(normal(random) * 8) / 8;
  return logits;
}

TEST(Logprobs, SumToOne) {
  const std::vector<float> logits = random_logits(300, 1);
  double sum = 0;
  for (int32_t id = 0; id < 300; ++id) sum += std::exp(logprob(logits, id));
  EXPECT_NEAR(sum, 1, 1e-12);
}

TEST(Logprobs, OfExtremeLogitsAreFinite) {
  EXPECT_NEAR(logprob(std::vector<float>{3e38f, 3e38f}, 0), std::log(0.5), 1e-12);
  EXPECT_NEAR(logprob(std::vector<float>{-3e38f, -3e38f}, 1), std::log(0.5), 1e-12);
  EXPECT_EQ(logprob(std::vector<float>{1.0f, -INFINITY}, 0), 0);
}

TEST(TopLogprobs, EqualASortOfEverything) {
  TokenLogprobs out;
  for (uint32_t round = 0; round < 100; ++round) {
    const size_t size = 1 + round * 3;
    const std::vector<float> logits = random_logits(size, round);
    std::vector<TokenLogprob> sorted;
    for (size_t id = 0; id < size; ++id) {
      sorted.push_back({static_cast<int32_t>(id), logprob(logits, static_cast<int32_t>(id))});
    }
    std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.logprob > b.logprob; });
    const auto token = static_cast<int32_t>((round * 31) % size);
    int64_t rank = 0;
    for (const float logit : logits) rank += logit >= logits[token];
    for (const int32_t k : {0, 1, 5, 20}) {
      top_logprobs(logits, token, k, out);
      EXPECT_EQ(out.token, token);
      EXPECT_EQ(out.logprob, logprob(logits, token));
      EXPECT_EQ(out.rank, rank);
      sorted.resize(std::max<size_t>(sorted.size(), k));
      EXPECT_EQ(out.best, std::vector(sorted.begin(), sorted.begin() + std::min<size_t>(k, size))) << size << ", " << k;
      sorted.resize(size);
    }
  }
}

TEST(TopLogprobs, TheBestTokenAloneHasRankOneAndTiesShareTheWorst) {
  TokenLogprobs out;
  const std::vector<float> logits = {1, 4, 2, 4, -INFINITY};
  top_logprobs(logits, 3, 3, out);
  EXPECT_EQ(out.rank, 2);
  EXPECT_EQ(out.best[0].token, 1);
  EXPECT_EQ(out.best[1].token, 3);
  EXPECT_EQ(out.best[2].token, 2);
  top_logprobs(std::vector<float>{1, 4, 2}, 1, 1, out);
  EXPECT_EQ(out.rank, 1);
  top_logprobs(logits, 4, 5, out);
  EXPECT_EQ(out.rank, 5);
  EXPECT_EQ(out.best[4], (TokenLogprob{4, -INFINITY}));
}

TEST(TopLogprobs, ReusesTheRoomOfItsOutput) {
  TokenLogprobs out;
  out.best.reserve(20);
  const TokenLogprob* room = out.best.data();
  for (uint32_t round = 0; round < 20; ++round) top_logprobs(random_logits(500, round), 3, 20, out);
  EXPECT_EQ(out.best.data(), room);
}

}  // namespace
}  // namespace deepinfer
