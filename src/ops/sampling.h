// Choice of a token a row, by Gumbel-max with counter-based noise: the same choice as sampling/sampler.h makes.
//
// The order of steps, ties and noise are those of sampling/sampler.h (argmax below temperature 1e-5; min-p against the
// row's largest logit, then top-k, then top-p; ties to the lower id; noise of an id from philox(key, position, id /
// 4)). Scores are in double. A row with a NaN or +infinity gives token -1; one whose logits are all -infinity its
// lowest id.
#pragma once

#include <cstdint>

#include "device/stream.h"
#include "device/view.h"

namespace deepinfer::ops {

// Per row, device memory.
struct SampleRow {
  double temperature = 1;
  double top_p = 1;
  double min_p = 0;
  uint64_t key = 0;       // sampling/philox.h, choice_key
  int64_t position = 0;   // of the token to choose; negative: a padding row, its token is undefined
  int32_t top_k = 0;      // <= 0: all
  int32_t mask_row = -1;  // row of `allowed`, or -1: all ids are
  int32_t slot = -1;      // of `last_tokens`, or -1: none
};

struct SampleArgs {
  int32_t* tokens = nullptr;           // [num_rows]
  MatrixView<const float> logits;      // [num_rows, vocabulary]
  const SampleRow* rows = nullptr;     // [num_rows]
  MatrixView<const uint32_t> allowed;  // bit i % 32 of word i / 32: id i may be chosen; data null: no masks
  // Of rows with a slot, the token once more, 0 where it is -1: what the slot's next step reads. Null: nowhere.
  int32_t* last_tokens = nullptr;  // [any]
};
void sample(Stream& stream, const SampleArgs& args);

}  // namespace deepinfer::ops
