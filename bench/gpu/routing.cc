#include "gpu/routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace deepinfer::bench {

RoutingDraws::RoutingDraws(Card& card, int64_t num_draws, int64_t num_tokens, int64_t num_experts, int64_t top_k,
                           Skew skew, uint64_t seed)
    : num_draws_(num_draws), num_tokens_(num_tokens), top_k_(top_k) {
  std::mt19937_64 random(seed);
  std::vector<double> share(num_experts, 1.0);
  if (skew == Skew::kZipf) {
    for (int64_t e = 0; e < num_experts; ++e) share[e] = std::pow(static_cast<double>(e + 1), -0.8);
  }
  std::uniform_real_distribution<float> weight(0.05f, 0.5f);
  std::vector<int32_t> experts;
  std::vector<float> weights;
  std::vector<int32_t> rank(num_experts);
  for (int64_t draw = 0; draw < num_draws; ++draw) {
    std::iota(rank.begin(), rank.end(), 0);
    std::shuffle(rank.begin(), rank.end(), random);  // another order of popularity for every draw
    std::discrete_distribution<int32_t> popular(share.begin(), share.end());
    std::vector<bool> seen(num_experts);
    for (int64_t t = 0; t < num_tokens; ++t) {
      std::vector<int32_t> chosen;
      while (static_cast<int64_t>(chosen.size()) < top_k) {
        const int32_t e = rank[popular(random)];
        if (std::find(chosen.begin(), chosen.end(), e) == chosen.end()) chosen.push_back(e);
      }
      std::sort(chosen.begin(), chosen.end());
      for (const int32_t e : chosen) {
        experts.push_back(e);
        weights.push_back(weight(random));
        seen[e] = true;
      }
    }
    mean_distinct_ += static_cast<double>(std::count(seen.begin(), seen.end(), true)) / static_cast<double>(num_draws);
  }
  experts_ = card.upload(experts);
  weights_ = card.upload(weights);
}

MatrixView<const int32_t> RoutingDraws::experts(int64_t draw) const {
  return dense<const int32_t>(experts_.data() + draw % num_draws_ * num_tokens_ * top_k_, num_tokens_, top_k_);
}

MatrixView<const float> RoutingDraws::weights(int64_t draw) const {
  return dense<const float>(weights_.data() + draw % num_draws_ * num_tokens_ * top_k_, num_tokens_, top_k_);
}

}  // namespace deepinfer::bench
