// The coefficients of a boundary: from the partial sums that mhc_streams.cuh leaves to pre, post and mix. A warp has a
// row until its softmaxes are known, a lane then iterates. A part of the kernel of mhc_finish.cuh.
#pragma once

#include "backends/cuda/launch.cuh"
#include "backends/cuda/mhc_row.cuh"
#include "backends/cuda/mhc_sinkhorn.cuh"

namespace deepinfer::cuda {

inline constexpr int kCoefficientRows = 8;  // most that a block of the second kernel has
// Partial sums: those of slices w, w + kSumParts, ... are added for each w, then these as a tree.
inline constexpr int kSumParts = 8;
inline constexpr int kSlicesAtOnce = 5;  // of each part, that a lane asks for before it adds the first

struct CoefficientsParams {
  const float* sums;  // [rows, slices, places of a row]
  int slices;
  const float *scale, *base;
  MatrixView<float> pre, post, mix;
  int rows, rows_a_block, h, iterations;
  float eps, norm_eps, inverse_width;  // of a row of streams
};

// Places that the sums of a row of h streams take: its outputs and the streams' squares.
__host__ __device__ constexpr int places_of_row(int h) { return (h * (h + 2) + 1 + 3) / 4 * 4; }
static_assert(places_of_row(kMhcStreams) == kMhcPitch);

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

// Of a value, whose slices are kStride apart.
template <int kStride>
__device__ inline float sum_slices(const float* value, int slices) {
  constexpr int kAtOnce = kSumParts * kSlicesAtOnce;
  float sums[kSumParts] = {};
  for (int first = 0; first < slices; first += kAtOnce, value += kAtOnce * kStride) {
    float of[kSlicesAtOnce][kSumParts];
    const auto load = [&](auto present) {
#pragma unroll
      for (int k = 0; k < kSlicesAtOnce; ++k) {
#pragma unroll
        for (int part = 0; part < kSumParts; ++part) {
          const int slice = kSumParts * k + part;
          of[k][part] = present(first + slice) ? value[slice * kStride] : 0.0f;
        }
      }
    };
    if (first + kAtOnce <= slices) {
      load([](int) { return true; });
    } else {
      load([&](int slice) { return slice < slices; });
    }
#pragma unroll
    for (int k = 0; k < kSlicesAtOnce; ++k) {
#pragma unroll
      for (int part = 0; part < kSumParts; ++part) sums[part] += of[k][part];
    }
  }
#pragma unroll
  for (int step = 1; step < kSumParts; step *= 2) {
#pragma unroll
    for (int part = 0; part < kSumParts; part += 2 * step) sums[part] += sums[part + step];
  }
  return sums[0];
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

// The coefficients of some rows by one block.
template <int kH>
__device__ inline void coefficients_of(const CoefficientsParams& p, int block) {
  constexpr int outputs = kH * (kH + 2), places = places_of_row(kH), rounds = (places + 31) / 32;
  __shared__ __align__(16) float softmaxes[kCoefficientRows][kH * kH];
  const int first = block * p.rows_a_block, rows = min(p.rows_a_block, p.rows - first);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  float scale[rounds], base[rounds];
#pragma unroll
  for (int k = 0; k < rounds; ++k) {
    const int o = min(32 * k + lane, outputs - 1);
    scale[k] = p.scale[min(o / kH, 2)], base[k] = p.base[o];
  }
  wait_for_kernel_before();
  for (int r = warp; r < rows; r += warps) {
    const int64_t row = first + r;
    float sums[rounds];
#pragma unroll
    for (int k = 0; k < rounds; ++k) {
      sums[k] = sum_slices<places>(p.sums + row * p.slices * places + min(32 * k + lane, outputs), p.slices);
    }
    const float square = __shfl_sync(0xFFFFFFFFu, sums[outputs / 32], outputs % 32);
    const float norm = rsqrtf(fmaf(square, p.inverse_width, p.norm_eps));
#pragma unroll
    for (int k = 0; k < rounds; ++k) {
      const int o = 32 * k + lane;
      const float x = weight_of<kH>(fmaf(sums[k] * norm, scale[k], base[k]), min(o, outputs - 1), p.eps);
      if (o >= outputs) continue;
      if (o < kH) {
        p.pre.data[row * p.pre.stride + o] = x;
      } else if (o < 2 * kH) {
        p.post.data[row * p.post.stride + o - kH] = x;
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
