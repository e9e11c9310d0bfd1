// Engram: adds a looked-up value to every residual stream through a scalar gate a stream.
//   g = sum_c x[c] * qk[c] * key[c] / (rms(x) * rms(key) * sqrt(hidden));  gate = sigmoid(copysign(sqrt(max(|g|,
//   1e-6)), g)) x <- x + gate * value
#pragma once

#include <cstdint>

#include "device/stream.h"
#include "device/view.h"

namespace deepinfer::ops {

// out[t] = the dequantised rows of token t one after another. `codes` and `scales` are device memory or host memory
// that the device reads (Device::allocate_pinned): a whole table with `rows` naming what to take, or rows that were
// gathered already (`rows` null: entry i of token t is row t * num_columns + i).
struct EngramRowsArgs {
  TensorView out;                     // [num_tokens, num_columns * head_dim]
  const uint8_t* codes = nullptr;     // E4M3 [any, head_dim]
  const uint8_t* scales = nullptr;    // E8M0 [any, head_dim / 32]
  const int64_t* rows = nullptr;      // [num_tokens, num_columns], device memory, or null
  int64_t num_columns = 0;
  bool quantise = false;  // the values also go through FakeQuant::kE4m3Group32
};
void engram_rows(Stream& stream, const EngramRowsArgs& args);

struct EngramApplyArgs {
  TensorView streams;                       // [num_tokens, h * hidden], in place
  ConstTensorView key_value;                // [num_tokens, (h + 1) * hidden]: h keys, then the shared value
  const float* query_key_weight = nullptr;  // [h, hidden]: product of the two norm weights
  int64_t num_streams = 0;                  // h
  float norm_eps = 0;
  bool round_to_bf16 = false;
};
void engram_apply(Stream& stream, const EngramApplyArgs& args);

}  // namespace deepinfer::ops
