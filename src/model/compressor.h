// The compressor of a KV source: `ratio` tokens become one latent row, kept rotated and quantised as compressed KV and,
// projected, as index key. A group ends at positions divisible by the ratio, wherever a step's boundaries lie.
#pragma once

#include "model/forward_context.h"
#include "model/weights.h"
#include "ops/latents.h"

namespace deepinfer {

// Adds the products of u to context.work.tasks.
void add_compressor_tasks(ForwardContext& context, const CompressorWeights& weights, int ratio, ConstTensorView u);

// What becomes of the products: normalised latents (ratio 1), or rows of the open group.
ops::LatentTask compressor_task(ForwardContext& context, int layer, const CompressorWeights& weights);

// After both ran: writes every row that the step's tokens complete.
void write_compressed_rows(ForwardContext& context, int layer, const CompressorWeights& weights);

}  // namespace deepinfer
