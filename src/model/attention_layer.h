// The attention of one layer: window rows, compressed rows of the layer's KV source, selection, grouped output
// projection.
#pragma once

#include "model/forward_context.h"
#include "model/weights.h"

namespace deepinfer {

enum class AttentionPart {
  kAll,
  kRows,     // only write the tokens' window and compressed rows and index keys
  kQueries,  // only what follows: they are written
};

// u: [num_tokens, hidden]; y: [num_tokens, hidden]. Writes the layer's window rows and, for a source, its compressed
// rows and index keys into the sequences' states; an index source replaces context.selection. y may be absent for
// kRows.
void attention_layer(ForwardContext& context, int layer, const AttentionWeights& weights, const SublayerInput& u,
                     TensorView y, AttentionPart part = AttentionPart::kAll);

}  // namespace deepinfer
