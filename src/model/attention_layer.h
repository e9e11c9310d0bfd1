// The attention of one layer: window rows, compressed rows of the layer's KV source, selection, grouped output
// projection.
#pragma once

#include "model/forward_context.h"
#include "model/weights.h"

namespace deepinfer {

// u: [num_tokens, hidden], normalised input; y: [num_tokens, hidden]. Writes the layer's window rows and, for a source,
// its compressed rows and index keys into the sequences' states; an index source replaces context.selection.
void attention_layer(ForwardContext& context, int layer, const AttentionWeights& weights, MatrixView<const float> u,
                     MatrixView<float> y);

}  // namespace deepinfer
