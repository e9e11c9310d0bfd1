// Mixture of experts: routes every token to its experts, runs each expert once over all of its tokens, adds the
// results.
#pragma once

#include "model/forward_context.h"
#include "model/weights.h"

namespace deepinfer {

// u: [num_tokens, hidden], normalised input; y: [num_tokens, hidden].
void moe_layer(ForwardContext& context, const MoeWeights& weights, MatrixView<const float> u, MatrixView<float> y);

}  // namespace deepinfer
