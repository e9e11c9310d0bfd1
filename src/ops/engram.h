// Engram: adds a looked-up value to every residual stream through a scalar gate a stream.
//   g = sum_c x[c] * qk[c] * key[c] / (rms(x) * rms(key) * sqrt(hidden));  gate = sigmoid(copysign(sqrt(max(|g|,
//   1e-6)), g)) x <- x + gate * value
#pragma once

#include <cstdint>

#include "device/stream.h"
#include "device/view.h"

namespace deepinfer::ops {

struct EngramApplyArgs {
  MatrixView<float> streams;                // [num_tokens, h * hidden], in place
  MatrixView<const float> key_value;        // [num_tokens, (h + 1) * hidden]: h keys, then the shared value
  const float* query_key_weight = nullptr;  // [h, hidden]: product of the two norm weights
  int64_t num_streams = 0;                  // h
  float norm_eps = 0;
  bool round_to_bf16 = false;
};
void engram_apply(Stream& stream, const EngramApplyArgs& args);

}  // namespace deepinfer::ops
