// One layer of the backbone: attention and experts, each between a collapse of the residual streams and their update.
#pragma once

#include "model/forward_context.h"
#include "model/weights.h"
#include "ops/mhc.h"

namespace deepinfer {

// The residual streams of a step between two sublayers.
struct Residual {
  TensorView streams;  // [num_tokens, h * hidden]
  // `pre`: how the next sublayer mixes the streams into its input. `post` and `mix`: how `result` goes into them.
  ops::MhcCoefficients coefficients;
  ConstTensorView result;  // [num_tokens, hidden], of the last sublayer, not yet in the streams; or absent: it is
};

// Puts the last sublayer's result into the streams.
void settle(ForwardContext& context, Residual& residual);

void decoder_layer(ForwardContext& context, int layer, const LayerWeights& weights, Residual& residual);

// The same for the first layer of the decoder when some tokens skip the rest: all tokens write the layer's rows, then
// only those of `kept` go on. rows: their numbers among `all`'s, on the device; `kept_residual` has memory for their
// streams and coefficients, filled from `residual`.
void decoder_layer_keeping(ForwardContext& all, ForwardContext& kept, const int32_t* rows, int layer,
                           const LayerWeights& weights, Residual& residual, Residual& kept_residual);

}  // namespace deepinfer
