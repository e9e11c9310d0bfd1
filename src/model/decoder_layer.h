// One layer of the backbone: attention and experts, each between a collapse of the residual streams and their update.
#pragma once

#include "model/forward_context.h"
#include "model/weights.h"

namespace deepinfer {

// streams: [num_tokens, h * hidden], in place. pre: [num_tokens, h]: the mix by which this layer's first sublayer
// collapses the streams, computed by the sublayer before; replaced by the last one computed here.
void decoder_layer(ForwardContext& context, int layer, const LayerWeights& weights, MatrixView<float> streams,
                   MatrixView<float> pre);

// The same for the first layer of the decoder when some tokens skip the rest: all tokens write the layer's rows, then
// only those of `kept` go on. rows: their numbers among `all`'s; kept_streams and kept_pre are filled from them.
void decoder_layer_keeping(ForwardContext& all, ForwardContext& kept, std::span<const int32_t> rows, int layer,
                           const LayerWeights& weights, MatrixView<float> streams, MatrixView<float> pre,
                           MatrixView<float> kept_streams, MatrixView<float> kept_pre);

}  // namespace deepinfer
