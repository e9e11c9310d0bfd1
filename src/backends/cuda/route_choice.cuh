// Which experts a token goes to, once its logits are known: their scores by many threads, the choice by one warp.
#pragma once

#include "backends/cuda/values.cuh"
#include "ops/moe.h"

namespace deepinfer::cuda {

inline constexpr int kMostRoutedExperts = 1024;  // for whose scores a block has room
inline constexpr int kMostChosenExperts = 32;    // one a lane

struct RouteParams {
  MatrixView<int32_t> experts;
  MatrixView<float> weights;
  const float* bias;
  int count;  // of experts
  float temperature;
  bool normalise;
  float scaling;
};
inline RouteParams route_params(const ops::RouteArgs& a) {
  return {a.experts, a.weights, a.bias, static_cast<int>(a.logits.cols), a.temperature, a.normalise, a.scaling};
}

struct RouteScores {
  float scores[kMostRoutedExperts];
  uint32_t keys[kMostRoutedExperts];  // of score + bias
};

// In double, where the logarithm is exact enough to round to the same float nearly everywhere.
__device__ inline float sqrt_softplus(float x) {
  const double y = x > 20.0f ? static_cast<double>(x) : log1p(exp(static_cast<double>(x)));
  return static_cast<float>(sqrt(y));
}

// Compares as the floats do. 0 is below every number's key.
__device__ inline uint32_t route_key(float score) {
  const uint32_t bits = __float_as_uint(score + 0.0f);  // -0 equals +0
  return max(1u, bits & 0x80000000u ? ~bits : bits | 0x80000000u);
}

__device__ inline void score_expert(RouteScores& shared, const RouteParams& p, int e, float logit, float bias) {
  shared.scores[e] = sqrt_softplus(logit / p.temperature);
  shared.keys[e] = route_key(shared.scores[e] + bias);
}

// By one warp, when all scores are there: the best one after another, then written as ascending experts of token `t`.
// kEach: experts that a lane looks after, lane, lane + 32, ...
template <int kEach>
__device__ inline void choose_experts(const RouteScores& shared, const RouteParams& p, int64_t t) {
  const int lane = threadIdx.x % 32, top_k = static_cast<int>(p.experts.cols);
  uint32_t mine[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) mine[k] = lane + 32 * k < p.count ? shared.keys[lane + 32 * k] : 0;
  int chosen = kMostRoutedExperts;  // of the lane whose turn it was
  for (int i = 0; i < top_k; ++i) {
    uint32_t best = 0;
    int best_k = 0;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      if (mine[k] > best) best = mine[k], best_k = k;  // the first of equals, which is the lowest
    }
    const uint32_t best_of_all = __reduce_max_sync(0xFFFFFFFFu, best);
    const int expert = lane + 32 * best_k;
    const int winner = __reduce_min_sync(0xFFFFFFFFu, best == best_of_all ? expert : kMostRoutedExperts);
    if (lane == i) chosen = winner;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      if (lane + 32 * k == winner) mine[k] = 0;
    }
  }
  // A lane's place is how many others chose a lower one.
  int place = 0;
  float sum = 0;
  for (int i = 0; i < top_k; ++i) place += __shfl_sync(0xFFFFFFFFu, chosen, i) < chosen;
  for (int i = 0; i < top_k; ++i) {
    const uint32_t who = __ballot_sync(0xFFFFFFFFu, lane < top_k && place == i);
    sum += shared.scores[__shfl_sync(0xFFFFFFFFu, chosen, __ffs(who) - 1)];
  }
  if (lane >= top_k) return;
  const float divisor = p.normalise ? sum + 1e-20f : 1.0f;
  p.experts.data[t * p.experts.stride + place] = chosen;
  p.weights.data[t * p.weights.stride + place] = shared.scores[chosen] / divisor * p.scaling;
}

}  // namespace deepinfer::cuda
