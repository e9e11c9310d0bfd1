// Log-probabilities from logits, in double: natural logarithm, of the model itself. They take the row as the model gave
// it, so ask before SequenceSampler::choose overwrites it. A logit of -infinity has the probability 0.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "deepinfer/logprobs.h"

namespace deepinfer {

// What turns a logit of a row into its log-probability. Requires: logits without NaN, one of them above -infinity.
class LogSoftmax {
 public:
  explicit LogSoftmax(std::span<const float> logits) : largest_(*std::max_element(logits.begin(), logits.end())) {
    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit - largest_);
    log_sum_ = std::log(sum);
  }
  double operator()(double logit) const { return logit - largest_ - log_sum_; }

 private:
  double largest_;
  double log_sum_;
};

inline double logprob(std::span<const float> logits, int32_t token) { return LogSoftmax(logits)(logits[token]); }

// Of `token`, and of the `k` likeliest tokens (all, if there are fewer). No allocation if out.best has room for k.
// Requires: logits without NaN, one of them above -infinity; token an index of them; k >= 0.
inline void top_logprobs(std::span<const float> logits, int32_t token, int32_t k, TokenLogprobs& out) {
  const LogSoftmax log_softmax(logits);
  const float own = logits[token];
  out.token = token;
  out.logprob = log_softmax(own);
  out.rank = std::count_if(logits.begin(), logits.end(), [own](float logit) { return logit >= own; });
  std::vector<TokenLogprob>& best = out.best;
  best.clear();
  const size_t wanted = std::min<size_t>(k, logits.size());
  if (wanted == 0) return;
  for (int32_t id = 0; id < static_cast<int32_t>(logits.size()); ++id) {
    const double logit = logits[id];
    if (best.size() == wanted && logit <= best.back().logprob) continue;  // ids ascend, so a tie is worse
    if (best.size() == wanted) best.pop_back();
    const auto place = std::find_if(best.begin(), best.end(), [&](const auto& b) { return b.logprob < logit; });
    best.insert(place, {id, logit});
  }
  for (TokenLogprob& entry : best) entry.logprob = log_softmax(entry.logprob);
}

}  // namespace deepinfer
