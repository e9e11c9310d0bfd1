// Sampler: from logits to one token, by the filters of SamplingParams and Gumbel-max.
//
// The noise is a function of (key, position, token id) alone, so the choice does not depend on the batch, on the step's
// shape or on speculation. Order of the filters: temperature, min-p, top-k, top-p. Ties go to the lowest id. A logit of
// -infinity bans its token. Penalties and bans are left to SequenceSampler. Holds scratch memory only; one a thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "deepinfer/sampling_params.h"

namespace deepinfer {

class Sampler {
 public:
  // Afterwards sample() allocates nothing for vocabularies up to this size.
  void reserve(int64_t vocab_size) { ids_.reserve(vocab_size); }

  // The token at `position` (the index it will have in its sequence). `key` is choice_key(seed, choice), see philox.h.
  // Requires: valid params; logits not empty, no NaN, no +infinity. Gives 0 if all of them are -infinity.
  int32_t sample(std::span<const float> logits, int64_t position, const SamplingParams& params, uint64_t key);

 private:
  void filter(std::span<const float> logits, float best, const SamplingParams& params);

  std::vector<int32_t> ids_;
};

// The lowest id among the largest logits. Requires: logits not empty, no NaN.
int32_t argmax(std::span<const float> logits);

}  // namespace deepinfer
