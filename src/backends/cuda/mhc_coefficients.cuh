// The coefficients of a boundary: from the partial sums that mhc_streams.cuh leaves to pre, post and mix. A block has
// some rows; it belongs to the kernel of mhc_finish.cuh.
#pragma once

#include "backends/cuda/launch.cuh"
#include "backends/cuda/mhc_row.cuh"
#include "backends/cuda/mhc_sinkhorn.cuh"

namespace deepinfer::cuda {

inline constexpr int kCoefficientRows = 8;  // most that a block of the second kernel has
// Partial sums: those of slices w, w + kSumParts, ... are added for each w, by one thread, then these in order.
inline constexpr int kSumParts = 8;
inline constexpr int kSlicesAtOnce = 5;  // that a thread asks for before it adds the first
inline constexpr int kFoursAtOnce = 2;   // of many rows: values, four neighbours each, that it asks for them of

struct CoefficientsParams {
  const float* sums;  // [slices, rows, outputs + 1], of many rows [slices, rows, kMhcPitch]
  int slices;
  const float *scale, *base;
  MatrixView<float> pre, post, mix;
  int rows, rows_a_block, h, iterations;
  float eps, norm_eps, inverse_width;  // of a row of streams
};

// Output `o` of a row, of `outputs`, whose logit is `x`: an element of pre or post, or one of the softmax of a row of
// mix. Called by whole warps; the kH lanes of a row of mix are neighbours.
template <int kH>
__device__ inline float weight_of(float x, int o, float eps) {
  const bool is_mix = o >= 2 * kH;
  float largest = x;
#pragma unroll
  for (int offset = kH / 2; offset > 0; offset /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, offset));
  }
  const float e = expf(is_mix ? x - largest : -x);
  float sum = e;
#pragma unroll
  for (int offset = kH / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, offset);
  const float inverse = reciprocal(is_mix ? sum : 1.0f + e);
  return fmaf(is_mix ? e : o < kH ? 1.0f : 2.0f, inverse, is_mix || o < kH ? eps : 0.0f);
}

template <int kH>
__device__ inline void mix_of_row(float* mix, const float* softmaxes, int iterations, float eps) {
  float m[kH][kH];
#pragma unroll
  for (int i = 0; i < kH; ++i) {
#pragma unroll
    for (int j = 0; j < kH; ++j) m[i][j] = softmaxes[i * kH + j];
  }
  sinkhorn(m, iterations, eps);
#pragma unroll
  for (int i = 0; i < kH; ++i) {
#pragma unroll
    for (int j = 0; j < kH; ++j) mix[i * kH + j] = m[i][j];
  }
}

// The sum of one value's slices `from`, from + kSumParts, ...; `part` is slice 0's and `stride` leads to the next.
__device__ inline float sum_slices(const float* part, int64_t stride, int from, int slices) {
  float sum = 0;
  part += from * stride;
  for (int first = from; first < slices; first += kSumParts * kSlicesAtOnce) {
    float parts[kSlicesAtOnce] = {};
#pragma unroll
    for (int k = 0; k < kSlicesAtOnce; ++k, part += kSumParts * stride) {
      if (first + kSumParts * k < slices) parts[k] = *part;
    }
#pragma unroll
    for (int k = 0; k < kSlicesAtOnce; ++k) sum += parts[k];
  }
  return sum;
}

// Sums of fours of neighbouring values over slices, in parts: sums[part][four] for the block's `fours`, which begin at
// `from` in slice 0; `stride` fours lead to the next slice.
template <int kMost>
__device__ inline void sum_fours(float4 (&sums)[kSumParts][kMost], const float4* from, int64_t stride, int fours,
                                 int slices) {
  constexpr int kItems = kFoursAtOnce, kSlices = kSlicesAtOnce;
  const int items = kSumParts * fours;
  for (int begin = threadIdx.x; begin < items; begin += kItems * blockDim.x) {
    float4 sum[kItems] = {};
    int part[kItems], four[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int item = begin + i * blockDim.x;
      part[i] = item < items ? item / fours : slices, four[i] = item % fours;
    }
    for (int first = 0; first < slices; first += kSumParts * kSlices) {
      float4 of[kItems][kSlices] = {};
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
#pragma unroll
        for (int k = 0; k < kSlices; ++k) {
          const int slice = first + part[i] + kSumParts * k;
          if (slice < slices) of[i][k] = from[slice * stride + four[i]];
        }
      }
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
#pragma unroll
        for (int k = 0; k < kSlices; ++k) {
          sum[i].x += of[i][k].x, sum[i].y += of[i][k].y, sum[i].z += of[i][k].z, sum[i].w += of[i][k].w;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (begin + i * blockDim.x < items) sums[part[i]][four[i]] = sum[i];
    }
  }
}

// The coefficients of some rows by one block.
template <int kH, bool kMany>
__device__ inline void coefficients_of(const CoefficientsParams& p, int block) {
  constexpr int outputs = kH * (kH + 2), sums = kMany ? kMhcPitch : outputs + 1, rounds = (outputs + 31) / 32;
  __shared__ __align__(16) float parts[kSumParts][kCoefficientRows * sums];
  __shared__ float softmaxes[kCoefficientRows][kH * kH];
  const int first = block * p.rows_a_block, rows = min(p.rows_a_block, p.rows - first);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  float scale[rounds], base[rounds];
#pragma unroll
  for (int k = 0; k < rounds; ++k) {
    const int o = min(32 * k + lane, outputs - 1);
    scale[k] = p.scale[min(o / kH, 2)], base[k] = p.base[o];
  }
  wait_for_kernel_before();
  if constexpr (kMany) {
    constexpr int of_row = sums / 4;
    auto& fours = reinterpret_cast<float4(&)[kSumParts][kCoefficientRows * of_row]>(parts);
    sum_fours(fours, reinterpret_cast<const float4*>(p.sums) + int64_t{first} * of_row, int64_t{p.rows} * of_row,
              rows * of_row, p.slices);
  } else {
    for (int part = warp; part < kSumParts; part += warps) {
      for (int i = lane; i < rows * sums; i += 32) {
        parts[part][i] = sum_slices(p.sums + int64_t{first} * sums + i, int64_t{p.rows} * sums, part, p.slices);
      }
    }
  }
  __syncthreads();
  const auto sum_of = [&](int r, int i) {
    float sum = parts[0][r * sums + i];
#pragma unroll
    for (int w = 1; w < kSumParts; ++w) sum += parts[w][r * sums + i];
    return sum;
  };
  for (int r = warp; r < rows; r += warps) {
    const float square = sum_of(r, outputs);
    const float norm = rsqrtf(fmaf(square, p.inverse_width, p.norm_eps));
#pragma unroll
    for (int k = 0; k < rounds; ++k) {
      const int o = min(32 * k + lane, outputs - 1);
      const float x = weight_of<kH>(fmaf(sum_of(r, o) * norm, scale[k], base[k]), o, p.eps);
      if (32 * k + lane >= outputs) continue;
      if (o < kH) {
        p.pre.data[(first + r) * p.pre.stride + o] = x;
      } else if (o < 2 * kH) {
        p.post.data[(first + r) * p.post.stride + o - kH] = x;
      } else {
        softmaxes[r][o - 2 * kH] = x;
      }
    }
  }
  if (rows == 1) {
    __syncwarp();
  } else {
    __syncthreads();
  }
  const int r = threadIdx.x;
  if (r < rows) mix_of_row<kH>(p.mix.data + (first + r) * p.mix.stride, softmaxes[r], p.iterations, p.eps);
}

}  // namespace deepinfer::cuda
