// The indexer of an index source: scores the source's index keys for every token and keeps the best rows.
//
// The model scales the head weights by 1 / sqrt(head_dim * heads); a positive factor common to all scores of a layer
// changes no selection, so it is left out here.
#pragma once

#include "model/forward_context.h"
#include "model/weights.h"

namespace deepinfer {

// Add products to context.work.tasks; they fill work.index_weights and work.index_query.
void add_index_weight_task(ForwardContext& context, const IndexerWeights& weights, ConstTensorView u);
void add_index_query_task(ForwardContext& context, const IndexerWeights& weights, ConstTensorView q_latent);

// After the tasks ran and the KV source's keys of this step are written: replaces context.selection.
void select_rows(ForwardContext& context, int layer, const RopeAngles& angles);

}  // namespace deepinfer
