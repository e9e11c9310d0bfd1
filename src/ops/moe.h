// Routing of tokens to experts, and the sum of what the experts return.
#pragma once

#include <cstdint>

#include "device/stream.h"
#include "device/view.h"

namespace deepinfer::ops {

// score_e = sqrt(softplus(logit_e / temperature)); the top_k experts by score + bias, ties to the lower expert; weights
// are the scores of the chosen ones (over their sum + 1e-20 if `normalise`) times `scaling`, experts in ascending
// order.
struct RouteArgs {
  MatrixView<int32_t> experts;     // [num_tokens, top_k]
  MatrixView<float> weights;       // [num_tokens, top_k]
  MatrixView<const float> logits;  // [num_tokens, num_experts]
  const float* bias = nullptr;     // [num_experts]
  float temperature = 1;
  bool normalise = true;
  float scaling = 1;
};
void route(Stream& stream, const RouteArgs& args);

// out[t] = sum over slots i of experts_out[rows[t, i]] in slot order, then + shared[t].
struct CombineArgs {
  MatrixView<float> out;                // [num_tokens, hidden]
  MatrixView<const float> experts_out;  // [num_rows, hidden]
  MatrixView<const int32_t> rows;       // [num_tokens, top_k]
  MatrixView<const float> shared;       // [num_tokens, hidden]
  bool round_to_bf16 = false;
};
void combine(Stream& stream, const CombineArgs& args);

}  // namespace deepinfer::ops
