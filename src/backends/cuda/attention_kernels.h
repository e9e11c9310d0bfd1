// The kernels behind ops::attention. attention.cu chooses; which one serves a call depends on the shapes and types of
// the model, and on the number of tokens only among kernels that give the same bits.
#pragma once

#include "ops/attention.h"

namespace deepinfer::cuda {

// Any shape and any row type, in fp32 on the ordinary cores.
void attention_simple(Stream& stream, const ops::AttentionArgs& args);

// BF16 on the tensor cores: 64 heads of 512 channels, of which the last 64 are rotated or none.
bool attention_tiled_takes(const ops::AttentionArgs& args);
void attention_tiled(Stream& stream, const ops::AttentionArgs& args);
// The same bits sooner, for few tokens.
void attention_cluster(Stream& stream, const ops::AttentionArgs& args);

}  // namespace deepinfer::cuda
