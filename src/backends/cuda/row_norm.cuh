// RMS norm of one row by one block, and the row's quantised form.
//
// The sum of squares is a tree over groups of 256 neighbouring channels, one lane eight of them, and then over the
// groups: a function of the width alone, however many channels (kVecs times eight) a thread has.
#pragma once

#include "backends/cuda/quantise.cuh"
#include "backends/cuda/values.cuh"

namespace deepinfer::cuda {

inline constexpr int kNormGroup = 32 * kVec;
inline constexpr int kMostNormGroups = 128;
inline constexpr int kManyNormVecs = 4;

// One vector a thread has the shortest way, four the most memory in flight.
inline int norm_vecs(int64_t rows, int64_t width) { return rows <= 512 && width <= 1024 * kVec ? 1 : kManyNormVecs; }
inline int norm_threads(int64_t width, int vecs) {
  DI_CHECK(width <= kMostNormGroups * kNormGroup, "rows of {} values are too wide for a block", width);
  return static_cast<int>((width + int64_t{kNormGroup} * vecs - 1) / (int64_t{kNormGroup} * vecs) * 32);
}

// Weights of a row's channels. With one vector a thread they are asked for when this is made, which may be before
// wait_for_kernel_before(): they are no kernel's output. With many rows they are in the cache, and registers are
// scarce.
template <int kVecs>
struct RowWeights {
  const float* weight;
  float early[8] = {};

  __device__ RowWeights(const float* weights, int width) : weight(weights) {
    if (kVecs == 1 && row_channel(0) < width) load8(weight + row_channel(0), early);
  }
  __device__ void load(int c, float (&w)[8]) const {
    if constexpr (kVecs > 1) {
      load8(weight + c, w);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) w[i] = early[i];
    }
  }
};

// `out` may be `in`; `quantised` may be null. The block has norm_threads(width, kVecs) threads or more.
template <int kVecs, typename T>
__device__ inline void normalise_row(T* out, const T* in, T* quantised, const RowWeights<kVecs>& weights, int width,
                                     float eps, bool round) {
  __shared__ float shared[kMostNormGroups];
  const int lane = threadIdx.x % 32, groups = (width + kNormGroup - 1) / kNormGroup;
  float v[kVecs][8] = {};
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    const int c = row_channel(k);
    if (c < width) load8(in + c, v[k]);
  }
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(v[k][i], v[k][i], sum);
    sum = warp_sum(sum);
    const int group = row_channel(k) / kNormGroup;
    if (lane == 0 && group < groups) shared[group] = sum;
  }
  __syncthreads();
  float sum = 0;
  for (int g = lane; g < groups; g += 32) sum += shared[g];
  sum = warp_sum(sum);
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(width) + eps);
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    if (row_channel(k) / kNormGroup >= groups) break;  // for whole warps: the quantiser's groups exchange their maxima
    const int c = row_channel(k);
    float w[8] = {};
    if (c < width) weights.load(c, w);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[k][i] = round_bf16_if(w[i] * (v[k][i] * scale), round);
    if (c < width) store8(out + c, v[k]);
    if (quantised == nullptr) continue;
    fake_quantise8<E4m3Group32>(v[k]);
    if (c < width) store8(quantised + c, v[k]);
  }
}

}  // namespace deepinfer::cuda
