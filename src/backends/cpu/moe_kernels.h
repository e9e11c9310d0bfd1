// The router of ops/moe.h; the experts are in experts.cc. Included by vector_ops_*.cc, once a processor level.
#pragma once

#include "backends/cpu/indexer_kernel.h"

namespace deepinfer::cpu::DEEPINFER_SIMD_NAMESPACE {

// In double: the logarithm of the C library is exact enough there to round to the same float everywhere.
inline float sqrt_softplus(float x) {
  const double y = x > 20.0f ? static_cast<double>(x) : std::log1p(std::exp(static_cast<double>(x)));
  return static_cast<float>(std::sqrt(y));
}

inline void route_kernel(Stream& stream, const ops::RouteArgs& a) {
  const int64_t num_experts = a.logits.cols;
  const int64_t top_k = a.experts.cols;
  if (a.gate != nullptr) {
    const ops::LinearTask product = a.product();
    stream.ops().linear(stream, {&product, 1});
  }
  for_ranges(stream, a.logits.rows, rows_per_task(num_experts * 32), [&](int64_t begin, int64_t end, int thread) {
    float* scores = cpu_stream(stream).thread_scratch(thread).get<float>(3 * num_experts);
    float* biased = scores + num_experts;
    auto* work = reinterpret_cast<uint32_t*>(biased + num_experts);
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t e = 0; e < num_experts; ++e) {
        scores[e] = sqrt_softplus(a.logits.row(t)[e] / a.temperature);
        biased[e] = scores[e] + a.bias[e];
      }
      int32_t* experts = a.experts.row(t);
      float* weights = a.weights.row(t);
      select_largest(biased, num_experts, top_k, work, experts);
      float sum = 0;
      for (int64_t i = 0; i < top_k; ++i) sum += scores[experts[i]];
      const float divisor = a.normalise ? sum + 1e-20f : 1.0f;
      for (int64_t i = 0; i < top_k; ++i) weights[i] = scores[experts[i]] / divisor * a.scaling;
    }
  });
}

inline void fill_moe(ops::OpTable& table) { table.route = route_kernel; }

}  // namespace deepinfer::cpu::DEEPINFER_SIMD_NAMESPACE
