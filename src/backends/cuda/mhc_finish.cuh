// The second kernel of mhc.cu: what needs whole rows. The first blocks make coefficients from the partial sums that the
// pass over the streams left; the others normalise a row each.
#pragma once

#include "backends/cuda/launch.cuh"
#include "backends/cuda/row_norm.cuh"

namespace deepinfer::cuda {

inline constexpr int kCoefficientRows = 8;  // most that a block of the second kernel has
// Partial sums: warp w of kSumWarps adds those of slices w, w + kSumWarps, ...; then the warps' sums are added in
// order.
inline constexpr int kSumWarps = 4;
inline constexpr int kSlicesAtOnce = 10;  // that a thread asks for before it adds the first

struct CoefficientsParams {
  const float* sums;  // [slices, rows, outputs + 1]
  int slices;
  const float *scale, *base;
  MatrixView<float> pre, post, mix;
  int rows, rows_a_block, h, iterations;
  float eps, norm_eps, width;  // width: values in a row of streams
};

template <typename T>
struct NormParams {
  T* rows;  // normalised in place
  int64_t stride;
  T* quantised;
  int64_t quantised_stride;
  const float* weight;
  int width;
  float eps;
  bool round;
};

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// x <- 1 / x, to within a few units in the last place. One reciprocal serves them all, since its unit is slow: the
// product of kCount numbers between 1e-6 and kCount is a normal number.
template <int kCount>
__device__ inline void invert(float (&x)[kCount]) {
  if constexpr (kCount == 1) {
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(x[0]) : "f"(x[0]));
  } else if constexpr (kCount > 4) {
    float low[kCount / 2], high[kCount / 2];
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) low[i] = x[i], high[i] = x[i + kCount / 2];
    invert(low), invert(high);
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) x[i] = low[i], x[i + kCount / 2] = high[i];
  } else {
    float products[kCount / 2];
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) products[i] = x[2 * i] * x[2 * i + 1];
    invert(products);
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      const float first = products[i] * x[2 * i + 1];
      x[2 * i + 1] = products[i] * x[2 * i];
      x[2 * i] = first;
    }
  }
}

template <int kCount>
__device__ inline float sum_of(float (&x)[kCount]) {
  float sums[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[i] = x[i];
#pragma unroll
  for (int step = kCount / 2; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i < step; ++i) sums[i] += sums[i + step];
  }
  return sums[0];
}

// From the softmax of the logits on, in registers.
template <int kH>
__device__ inline void sinkhorn(float (&m)[kH][kH], int iterations, float eps) {
  for (int k = 0; k < iterations; ++k) {
    float scale[kH];
    if (k > 0) {
#pragma unroll
      for (int i = 0; i < kH; ++i) scale[i] = sum_of<kH>(m[i]) + eps;
      invert(scale);
#pragma unroll
      for (int i = 0; i < kH; ++i) {
#pragma unroll
        for (int j = 0; j < kH; ++j) m[i][j] *= scale[i];
      }
    }
#pragma unroll
    for (int j = 0; j < kH; ++j) {
      float column[kH];
#pragma unroll
      for (int i = 0; i < kH; ++i) column[i] = m[i][j];
      scale[j] = sum_of<kH>(column) + eps;
    }
    invert(scale);
#pragma unroll
    for (int j = 0; j < kH; ++j) {
#pragma unroll
      for (int i = 0; i < kH; ++i) m[i][j] *= scale[j];
    }
  }
}

// Element j of the softmax of kH values.
template <int kH>
__device__ inline float softmax(const float (&x)[kH], int j) {
  float largest = x[0], sum = 0, mine = 0;
#pragma unroll
  for (int i = 1; i < kH; ++i) largest = fmaxf(largest, x[i]);
#pragma unroll
  for (int i = 0; i < kH; ++i) {
    const float weight = expf(x[i] - largest);
    sum += weight;
    if (i == j) mine = weight;
  }
  return mine / sum;
}

template <int kH>
__device__ inline void mix_of_row(float* mix, const float* softmaxes, int iterations, float eps) {
  float m[kH][kH];
#pragma unroll
  for (int i = 0; i < kH; ++i) {
#pragma unroll
    for (int j = 0; j < kH; ++j) m[i][j] = softmaxes[i * kH + j];
  }
  sinkhorn<kH>(m, iterations, eps);
#pragma unroll
  for (int i = 0; i < kH; ++i) {
#pragma unroll
    for (int j = 0; j < kH; ++j) mix[i * kH + j] = m[i][j];
  }
}

// Sums one value's parts, from slice `warp` on in steps of kSumWarps; `part` is slice 0's and `stride` leads to the
// next.
__device__ inline float sum_slices(const float* part, int64_t stride, int warp, int slices) {
  float sum = 0;
  int s = warp;
  for (; s + kSumWarps * (kSlicesAtOnce - 1) < slices; s += kSumWarps * kSlicesAtOnce) {
    float parts[kSlicesAtOnce];
#pragma unroll
    for (int k = 0; k < kSlicesAtOnce; ++k) parts[k] = part[(s + kSumWarps * k) * stride];
#pragma unroll
    for (int k = 0; k < kSlicesAtOnce; ++k) sum += parts[k];
  }
  for (; s < slices; s += kSumWarps) sum += part[s * stride];
  return sum;
}

// The coefficients of rows from `first` on.
template <int kH>
__device__ inline void coefficients_of(const CoefficientsParams& p, int first) {
  constexpr int outputs = kH * (kH + 2), sums = outputs + 1;
  __shared__ float of_warps[kSumWarps][kCoefficientRows * sums];
  __shared__ float m[kCoefficientRows][sums], softmaxes[kCoefficientRows][kH * kH];
  const int rows = min(p.rows_a_block, p.rows - first);
  const int warp = threadIdx.x / 32;
  if (warp < kSumWarps) {
    for (int i = threadIdx.x % 32; i < rows * sums; i += 32) {
      of_warps[warp][i] = sum_slices(p.sums + int64_t{first} * sums + i, int64_t{p.rows} * sums, warp, p.slices);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < rows * sums; i += blockDim.x) {
    float sum = of_warps[0][i];
#pragma unroll
    for (int w = 1; w < kSumWarps; ++w) sum += of_warps[w][i];
    m[i / sums][i % sums] = sum;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < rows * outputs; i += blockDim.x) {
    const int r = i / outputs, o = i % outputs;
    const float norm = 1.0f / sqrtf(m[r][outputs] / p.width + p.norm_eps);
    const auto logit = [&](int of, int kind) { return fmaf(m[r][of] * norm, p.scale[kind], p.base[of]); };
    if (o < kH) {
      p.pre.data[(first + r) * p.pre.stride + o] = sigmoid(logit(o, 0)) + p.eps;
    } else if (o < 2 * kH) {
      p.post.data[(first + r) * p.post.stride + o - kH] = 2.0f * sigmoid(logit(o, 1));
    } else {
      float logits[kH];
#pragma unroll
      for (int j = 0; j < kH; ++j) logits[j] = logit(o - o % kH + j, 2);  // 2 * kH is a multiple of kH
      softmaxes[r][o - 2 * kH] = softmax(logits, o % kH) + p.eps;
    }
  }
  __syncthreads();
  const int r = threadIdx.x;
  if (r < rows) mix_of_row<kH>(p.mix.data + (first + r) * p.mix.stride, softmaxes[r], p.iterations, p.eps);
}

// The first blocks have coefficients, which take longer; the others a row to normalise each.
template <typename T, int kH, int kVecs>
__global__ void mhc_finish_kernel(const CoefficientsParams c, const NormParams<T> n, int coefficient_blocks) {
  if (static_cast<int>(blockIdx.x) < coefficient_blocks) {
    wait_for_kernel_before();
    let_next_kernel_start();
    coefficients_of<kH>(c, blockIdx.x * c.rows_a_block);
    return;
  }
  const RowWeights<kVecs> weights(n.weight, n.width);
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t r = blockIdx.x - coefficient_blocks;
  normalise_row(n.rows + r * n.stride, n.rows + r * n.stride,
                n.quantised ? n.quantised + r * n.quantised_stride : nullptr, weights, n.width, n.eps, n.round);
}

}  // namespace deepinfer::cuda
