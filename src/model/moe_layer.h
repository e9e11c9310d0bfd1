// Mixture of experts: scores every token's experts, chooses them and runs them.
#pragma once

#include "model/forward_context.h"
#include "model/weights.h"

namespace deepinfer {

// u: [num_tokens, hidden]; y: [num_tokens, hidden].
void moe_layer(ForwardContext& context, const MoeWeights& weights, const SublayerInput& u, TensorView y);

}  // namespace deepinfer
