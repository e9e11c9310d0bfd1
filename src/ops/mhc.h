// Manifold-constrained hyper-connections: four residual streams a token, mixed by small matrices that are computed from
// the streams themselves. The mix of a sublayer's input is used one sublayer later than it is computed.
#pragma once

#include <cstdint>

#include "device/stream.h"
#include "device/view.h"
#include "ops/linear.h"

namespace deepinfer::ops {

inline constexpr int64_t kMaxStreams = 8;

// From the projection m = fn . flatten(streams) to the three sets of coefficients of one sublayer.
//   m *= 1 / sqrt(mean(streams^2) + norm_eps), one statistic over all streams
//   pre[s]  = sigmoid(m[s] * scale[0] + base[s]) + eps
//   post[s] = 2 * sigmoid(m[h+s] * scale[1] + base[h+s])
//   mix     = softmax over columns of (m[2h + h*i + j] * scale[2] + base[..]) + eps, then columns divided by their sum
//             + eps, then (iterations - 1) times rows and columns likewise (Sinkhorn)
struct MhcWeights {
  const PackedWeight* fn = nullptr;  // kF32 [h * (h + 2), h * hidden]
  const float* scale = nullptr;      // [3]
  const float* base = nullptr;       // [h * (h + 2)]
  int64_t num_streams = 0;           // h
  int iterations = 0;
  float eps = 0;
  float norm_eps = 0;
};
struct MhcCoefficients {
  MatrixView<float> pre;   // [num_tokens, h]
  MatrixView<float> post;  // [num_tokens, h]
  MatrixView<float> mix;   // [num_tokens, h * h], mix[i * h + j]: from stream i to stream j
};
struct MhcCoefficientsArgs {
  MhcWeights weights;
  MhcCoefficients out;
  ConstTensorView streams;  // [num_tokens, h * hidden]
};
void mhc_coefficients(Stream& stream, const MhcCoefficientsArgs& args);

// out = rms_norm(sum_s pre[s] * streams[s]); the sum is rounded to BF16 before the norm if asked. With `quantised`, also
// out through FakeQuant::kE4m3Group32.
struct MhcCollapseArgs {
  TensorView out;           // [num_tokens, hidden]
  ConstTensorView streams;  // [num_tokens, h * hidden]
  MatrixView<const float> pre;
  const float* norm_weight = nullptr;
  float norm_eps = 0;
  bool round_to_bf16 = false;
  TensorView quantised = {};  // [num_tokens, hidden] or absent
};
void mhc_collapse(Stream& stream, const MhcCollapseArgs& args);

// streams[j] <- post[j] * y + sum_i mix[i][j] * streams[i], in place.
struct MhcUpdateArgs {
  TensorView streams;  // [num_tokens, h * hidden]
  ConstTensorView y;   // [num_tokens, hidden]
  MatrixView<const float> post;
  MatrixView<const float> mix;
  bool round_to_bf16 = false;
};
void mhc_update(Stream& stream, const MhcUpdateArgs& args);

// Between two sublayers, in one pass over the streams: mhc_update with y and the coefficients' post and mix (left out
// if y is absent: nothing ended), mhc_collapse with their pre, then the coefficients become those of the new streams.
// Bits are those of the three ops called one after another.
struct MhcBoundaryArgs {
  MhcWeights weights;
  MhcCoefficients coefficients;  // in and out
  TensorView streams;            // [num_tokens, h * hidden], in place
  ConstTensorView y;             // [num_tokens, hidden] or absent
  TensorView out;                // [num_tokens, hidden]
  TensorView quantised = {};     // [num_tokens, hidden] or absent
  const float* norm_weight = nullptr;
  bool round_to_bf16 = false;
};
void mhc_boundary(Stream& stream, const MhcBoundaryArgs& args);

}  // namespace deepinfer::ops
