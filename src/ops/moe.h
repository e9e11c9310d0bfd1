// Mixture of experts: routing of tokens to experts, and the experts themselves.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "device/stream.h"
#include "device/view.h"
#include "ops/linear.h"

namespace deepinfer::ops {

// score_e = sqrt(softplus(logit_e / temperature)); the top_k experts by score + bias, ties to the lower expert; weights
// are the scores of the chosen ones (over their sum + 1e-20 if `normalise`) times `scaling`, experts in ascending
// order. With a `gate` the logits are its product with `in`, as `linear` has it with outputs that stay fp32.
struct RouteArgs {
  MatrixView<int32_t> experts;  // [num_tokens, top_k]
  MatrixView<float> weights;    // [num_tokens, top_k]
  MatrixView<float> logits;     // [num_tokens, num_experts]; with a gate room for them, undefined afterwards
  const float* bias = nullptr;  // [num_experts]
  float temperature = 1;
  bool normalise = true;
  float scaling = 1;
  const PackedWeight* gate = nullptr;  // [num_experts, hidden], or null: the logits are given
  ConstTensorView in = {};             // [num_tokens, hidden]
  bool input_is_bf16 = false;          // as in LinearTask

  LinearTask product() const { return {logits, in, gate, input_is_bf16, false}; }
};
void route(Stream& stream, const RouteArgs& args);

struct ExpertWeights {
  PackedWeight w1;  // gate, [inner, hidden]
  PackedWeight w2;  // down, [hidden, inner]
  PackedWeight w3;  // up, [inner, hidden]
};

// The experts of one layer. `prepare_experts` fills `prepared` with what the backend needs besides; the weights do not
// move afterwards.
struct ExpertBank {
  std::vector<ExpertWeights> routed;
  ExpertWeights shared;
  std::shared_ptr<void> prepared;
};
void prepare_experts(Stream& stream, ExpertBank& bank);

// out[t] = sum over the slots i in order of weights[t, i] applied inside expert experts[t, i], then + the shared
// expert's:
//   expert(u) = w2 . quantise(swiglu(w1 . u, w3 . u) * weight)
// with swiglu as in ops/elementwise.h. Rounded to BF16, if asked: the products, the activation, out.
struct ExpertsArgs {
  TensorView out;                     // [num_tokens, hidden]
  ConstTensorView in;                 // [num_tokens, hidden], quantised already if the numerics do
  MatrixView<const int32_t> experts;  // [num_tokens, top_k], ascending
  MatrixView<const float> weights;    // [num_tokens, top_k]
  const ExpertBank* bank = nullptr;
  float swiglu_limit = 0;
  bool quantise = false;  // the activation, through FakeQuant::kE4m3Group32
  bool round_to_bf16 = false;
};
void experts(Stream& stream, const ExpertsArgs& args);

}  // namespace deepinfer::ops
