// The passes over the streams of mhc.cu for any number of streams and element type: one kernel a step, plain fp32. Used
// where activations stay fp32, which is for exactness and not for speed.
#pragma once

#include "backends/cuda/launch.cuh"
#include "backends/cuda/values.cuh"
#include "ops/mhc.h"

namespace deepinfer::cuda {

inline constexpr int kMhcFlatThreads = 128;
inline constexpr int kMhcProjectThreads = 256;

// A thread has eight channels of every stream of a row.
template <typename T>
__global__ void mhc_update_kernel(Rows<T> streams, Rows<const T> y, MatrixView<const float> post,
                                  MatrixView<const float> mix, int hidden, bool round) {
  wait_for_kernel_before();
  const int64_t r = blockIdx.y;
  const int c = (blockIdx.x * kMhcFlatThreads + threadIdx.x) * kVec;
  if (c >= hidden) return;
  const int h = static_cast<int>(post.cols);
  float in[ops::kMaxStreams][8], ys[8];
  load8(y.row(r) + c, ys);
#pragma unroll
  for (int s = 0; s < ops::kMaxStreams; ++s) {
    if (s < h) load8(streams.row(r) + s * hidden + c, in[s]);
  }
  for (int j = 0; j < h; ++j) {
    float out[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = __fmul_rn(post.data[r * post.stride + j], ys[i]);
#pragma unroll
    for (int s = 0; s < ops::kMaxStreams; ++s) {
      if (s >= h) break;
      const float weight = mix.data[r * mix.stride + s * h + j];
#pragma unroll
      for (int i = 0; i < 8; ++i) out[i] = fmaf(weight, in[s][i], out[i]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = round_bf16_if(out[i], round);
    store8(streams.row(r) + j * hidden + c, out);
  }
}

template <typename T>
__global__ void mhc_collapse_kernel(Rows<T> out, Rows<const T> streams, MatrixView<const float> pre, int hidden,
                                    bool round) {
  wait_for_kernel_before();
  const int64_t r = blockIdx.y;
  const int c = (blockIdx.x * kMhcFlatThreads + threadIdx.x) * kVec;
  if (c >= hidden) return;
  float sum[8] = {};
  for (int s = 0; s < pre.cols; ++s) {
    float v[8];
    load8(streams.row(r) + s * hidden + c, v);
    const float weight = pre.data[r * pre.stride + s];
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] = fmaf(weight, v[i], sum[i]);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) sum[i] = round_bf16_if(sum[i], round);
  store8(out.row(r) + c, sum);
}

// sums[r], which has `places`, = the projections of row r, then its sum of squares. A block has one row and goes
// through it once for every eight outputs.
template <typename T>
__global__ void mhc_project_kernel(float* sums, Rows<const T> streams, const float* fn, int outputs, int cols,
                                   int places) {
  wait_for_kernel_before();
  __shared__ float shared[2][32][8];
  const int64_t r = blockIdx.x;
  int buffer = 0;
  for (int first = 0; first <= outputs; first += 8) {
    float sum[8] = {};
    for (int c = threadIdx.x * kVec; c < cols; c += kMhcProjectThreads * kVec) {
      float v[8];
      load8(streams.row(r) + c, v);
#pragma unroll
      for (int o = 0; o < 8; ++o) {
        float w[8] = {};
        if (first + o < outputs) {
          load8(fn + int64_t{first + o} * cols + c, w);
        } else if (first + o == outputs) {
#pragma unroll
          for (int i = 0; i < 8; ++i) w[i] = v[i];
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[o] = fmaf(v[i], w[i], sum[o]);
      }
    }
    block_sum(sum, shared[buffer]);
    buffer ^= 1;
    if (threadIdx.x == 0) {
      for (int o = 0; o < 8 && first + o <= outputs; ++o) sums[r * places + first + o] = sum[o];
    }
  }
}

}  // namespace deepinfer::cuda
