// Sampler: from logits to one token.
//
// The noise is a function of (seed, position, token id) alone, so the choice does not depend on the batch, on the
// step's shape or on speculation. Order of the filters, as users of vLLM know it: temperature, min-p, top-k, top-p;
// then Gumbel-max among what is left. Ties go to the lowest id.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace deepinfer {

struct SamplingParams {
  double temperature = 1.0;  // >= 0; below 1e-5 the best token is taken
  int64_t top_k = 0;         // keep the k best; 0: all
  double top_p = 1.0;        // (0, 1]: keep the smallest set of best tokens with at least this probability
  double min_p = 0.0;        // [0, 1]: drop tokens below this share of the best one's probability
  uint64_t seed = 0;

  // Names the field, its value and the allowed range.
  Status validate() const;
};

class Sampler {
 public:
  // The token at `position` (the index it will have in its sequence). Requires: valid params, logits finite, not empty.
  int32_t sample(std::span<const float> logits, int64_t position, const SamplingParams& params);

 private:
  std::vector<int32_t> ids_;
};

// The lowest id among the largest logits.
int32_t argmax(std::span<const float> logits);

}  // namespace deepinfer
