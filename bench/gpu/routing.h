// Which experts tokens go to: several draws of a seeded generator, uniform or skewed, on the card.
#pragma once

#include <cstdint>

#include "gpu/card.h"

namespace deepinfer::bench {

enum class Skew { kUniform, kZipf };  // Zipf: the k-th most wanted expert by k^-0.8

class RoutingDraws {
 public:
  RoutingDraws(Card& card, int64_t num_draws, int64_t num_tokens, int64_t num_experts, int64_t top_k, Skew skew,
               uint64_t seed);
  MatrixView<const int32_t> experts(int64_t draw) const;
  MatrixView<const float> weights(int64_t draw) const;
  // Different experts of one draw, on average.
  double mean_distinct() const { return mean_distinct_; }

 private:
  int64_t num_draws_, num_tokens_, top_k_;
  double mean_distinct_ = 0;
  DeviceValues<int32_t> experts_;
  DeviceValues<float> weights_;
};

}  // namespace deepinfer::bench
