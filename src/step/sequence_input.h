// SequenceInput: what a device needs to know of one sequence. Constant once the sequence is submitted, but for
// `tokens`, which grow at the end within the capacity reserved at the start, so that views of earlier tokens stay
// valid.
#pragma once

#include <cstdint>
#include <vector>

#include "deepinfer/sampling_params.h"

namespace deepinfer {

struct SequenceInput {
  std::vector<int32_t> tokens;  // prompt, then what was answered so far
  int64_t num_prompt_tokens = 0;
  int64_t max_tokens_total = 0;  // prompt and answer; tokens has this capacity

  SamplingParams params;
  uint64_t sampling_key = 0;        // seed and choice
  std::vector<int32_t> end_tokens;  // end of sequence and stop tokens
  std::vector<std::vector<int32_t>> bad_word_tokens;

  // Bounded replay (SequenceStep::decoder_begin); fixed when the request is submitted, so that it survives preemption.
  int64_t decoder_begin = 0;
  bool mask_only = false;
};

}  // namespace deepinfer
