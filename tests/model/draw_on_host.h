// The op `sample` in terms of sampling/sampler.h, for devices of tests whose work runs on the host.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include "ops/sampling.h"
#include "sampling/sampler.h"

namespace deepinfer {

inline int32_t draw_row_on_host(std::span<const float> logits, const ops::SampleRow& row) {
  for (const float logit : logits) {
    if (!(logit < INFINITY)) return -1;
  }
  SamplingParams params;
  params.temperature = row.temperature;
  params.top_p = row.top_p;
  params.min_p = row.min_p;
  params.top_k = row.top_k;
  return Sampler().sample(logits, row.position, params, row.key);
}

// Without masks.
inline void draw_on_host(const ops::SampleArgs& args) {
  for (int64_t r = 0; r < args.logits.rows; ++r) {
    const ops::SampleRow& row = args.rows[r];
    if (row.position < 0) continue;
    args.tokens[r] = draw_row_on_host({args.logits.row(r), static_cast<size_t>(args.logits.cols)}, row);
    if (row.slot >= 0) args.last_tokens[row.slot] = std::max(args.tokens[r], 0);
  }
}

}  // namespace deepinfer
