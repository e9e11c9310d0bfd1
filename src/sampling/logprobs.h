// Log-probabilities from logits, in double: natural logarithm, before temperature and filters.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

namespace deepinfer {

// log(sum(exp(logits))). Requires: not empty.
inline double log_sum_exp(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

inline double logprob(std::span<const float> logits, int32_t token) { return logits[token] - log_sum_exp(logits); }

}  // namespace deepinfer
