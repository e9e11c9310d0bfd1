// Manifold-constrained hyper-connections: four residual streams a token, mixed by small matrices that are computed from
// the streams themselves. The mix of a sublayer's input is used one sublayer later than it is computed.
#pragma once

#include <cstdint>

#include "device/stream.h"
#include "device/view.h"

namespace deepinfer::ops {

inline constexpr int64_t kMaxStreams = 8;

// From the projection m = fn . flatten(streams) to the three sets of coefficients of one sublayer.
//   m *= 1 / sqrt(mean(streams^2) + norm_eps), one statistic over all streams
//   pre[s]  = sigmoid(m[s] * scale[0] + base[s]) + eps
//   post[s] = 2 * sigmoid(m[h+s] * scale[1] + base[h+s])
//   mix     = softmax over columns of (m[2h + h*i + j] * scale[2] + base[..]) + eps, then columns divided by their sum
//             + eps, then (iterations - 1) times rows and columns likewise (Sinkhorn)
struct MhcCoefficientsArgs {
  MatrixView<float> pre;               // [num_tokens, h]
  MatrixView<float> post;              // [num_tokens, h]
  MatrixView<float> mix;               // [num_tokens, h * h], mix[i * h + j]: from stream i to stream j
  MatrixView<const float> projection;  // [num_tokens, h * (h + 2)], before scaling
  MatrixView<const float> streams;     // [num_tokens, h * hidden]
  const float* scale = nullptr;        // [3]
  const float* base = nullptr;         // [h * (h + 2)]
  int64_t num_streams = 0;             // h
  int iterations = 0;
  float eps = 0;
  float norm_eps = 0;
};
void mhc_coefficients(Stream& stream, const MhcCoefficientsArgs& args);

// out = rms_norm(sum_s pre[s] * streams[s]); the sum is rounded to BF16 before the norm if asked.
struct MhcCollapseArgs {
  MatrixView<float> out;            // [num_tokens, hidden]
  MatrixView<const float> streams;  // [num_tokens, h * hidden]
  MatrixView<const float> pre;      // [num_tokens, h]
  const float* norm_weight = nullptr;
  float norm_eps = 0;
  bool round_to_bf16 = false;
};
void mhc_collapse(Stream& stream, const MhcCollapseArgs& args);

// streams[j] <- post[j] * y + sum_i mix[i][j] * streams[i], in place.
struct MhcUpdateArgs {
  MatrixView<float> streams;  // [num_tokens, h * hidden]
  MatrixView<const float> y;  // [num_tokens, hidden]
  MatrixView<const float> post;
  MatrixView<const float> mix;
  bool round_to_bf16 = false;
};
void mhc_update(Stream& stream, const MhcUpdateArgs& args);

}  // namespace deepinfer::ops
