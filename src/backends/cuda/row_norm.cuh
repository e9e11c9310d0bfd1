// RMS norm of one row by one block, and the row's quantised form. The order of the sum depends on the width alone.
#pragma once

#include "backends/cuda/quantise.cuh"
#include "backends/cuda/values.cuh"

namespace deepinfer::cuda {

// `out` may be `in`; `quantised` may be null. The block has row_threads(width) threads.
template <typename T>
__device__ inline void normalise_row(T* out, const T* in, T* quantised, const float* weight, int width, float eps,
                                     bool round) {
  __shared__ float shared[32][1];
  const int first = threadIdx.x * kVec, step = blockDim.x * kVec;
  float v[8] = {}, w[8] = {}, sum[1] = {0};
  if (first < width) {
    load8(in + first, v);
    load8(weight + first, w);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) sum[0] = fmaf(v[i], v[i], sum[0]);
  for (int c = first + step; c < width; c += step) {  // of rows wider than a block
    float more[8];
    load8(in + c, more);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[0] = fmaf(more[i], more[i], sum[0]);
  }
  block_sum(sum, shared);
  const float scale = 1.0f / sqrtf(sum[0] / static_cast<float>(width) + eps);
  // Whole warps stay together: the quantiser's groups exchange their maxima.
  for (int base = 0; base < width; base += step) {
    const int c = base + first;
    if (base > 0 && c < width) {
      load8(in + c, v);
      load8(weight + c, w);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = round_bf16_if(w[i] * (v[i] * scale), round);
    if (c < width) store8(out + c, v);
    if (quantised == nullptr) continue;
    fake_quantise8<E4m3Group32>(v);
    if (c < width) store8(quantised + c, v);
  }
}

}  // namespace deepinfer::cuda
