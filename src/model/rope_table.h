// Rotary position embedding: the frequencies of the model's two kinds of layer.
#pragma once

#include <vector>

#include "model/layer_plan.h"
#include "model/model_config.h"

namespace deepinfer {

// One frequency a pair of channels, fp32. kPlain: 1 / rope_theta^(2j / d). kCompressed: likewise from
// compress_rope_theta, then YaRN (always, also for short contexts): divided by `factor` where a pair turns slower than
// beta_slow over the original context, unchanged where faster than beta_fast, blended between.
std::vector<float> rope_frequencies(const ModelConfig& config, RopeKind kind);

}  // namespace deepinfer
