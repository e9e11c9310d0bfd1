// The second kernel of mhc.cu: what needs sums over whole rows. The first blocks make coefficients from the partial
// sums that the pass over the streams left, the others normalise the collapsed rows by its partial squares.
#pragma once

#include "backends/cuda/launch.cuh"
#include "backends/cuda/mhc_sinkhorn.cuh"
#include "backends/cuda/row_norm.cuh"

namespace deepinfer::cuda {

// Most that a block of the second kernel makes coefficients for.
__host__ __device__ constexpr int coefficient_rows(int64_t h) { return h <= 4 ? 32 : 8; }
// Partial sums: warp w of kSumWarps adds those of slices w, w + kSumWarps, ...; then the warps' sums are added in
// order.
inline constexpr int kSumWarps = 8;
inline constexpr int kNormThreads = 320;  // of a block at most, where squares are summed by slices
inline constexpr int kSlicesAtOnce = 5;  // that a thread asks for before it adds the first

struct CoefficientsParams {
  const float* sums;  // [slices, rows, outputs + 1]
  int slices;
  const float *scale, *base;
  MatrixView<float> pre, post, mix;
  int rows, rows_a_block, h, iterations;
  float eps, norm_eps, inverse_width;  // of a row of streams
};

template <typename T>
struct NormParams {
  T* rows;  // normalised in place
  int64_t stride;
  T* quantised;
  int64_t quantised_stride;
  const float* weight;
  const float* squares;  // [rows, slices], or null: then they are summed here, and a block has the whole row
  int slices;
  int blocks_a_row;
  int width;
  float inverse_width, eps;
  bool round;
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

// Warp `warp`'s share of one value's parts; `part` is slice 0's and `stride` leads to the next.
__device__ inline float sum_slices(const float* part, int64_t stride, int warp, int slices) {
  float sum = 0;
  part += warp * stride;
  for (int first = warp; first < slices; first += kSumWarps * kSlicesAtOnce) {
    float parts[kSlicesAtOnce] = {};
#pragma unroll
    for (int k = 0; k < kSlicesAtOnce; ++k, part += kSumWarps * stride) {
      if (first + kSumWarps * k < slices) parts[k] = *part;
    }
#pragma unroll
    for (int k = 0; k < kSlicesAtOnce; ++k) sum += parts[k];
  }
  return sum;
}

// The coefficients of some rows by one block, which has kSumWarps warps or more.
template <int kH>
__device__ inline void coefficients_of(const CoefficientsParams& p, int block) {
  constexpr int outputs = kH * (kH + 2), sums = outputs + 1, rounds = (outputs + 31) / 32;
  __shared__ float of_warps[kSumWarps][coefficient_rows(kH) * sums];
  __shared__ float softmaxes[coefficient_rows(kH)][kH * kH];
  const int first = block * p.rows_a_block, rows = min(p.rows_a_block, p.rows - first);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float scale[rounds], base[rounds];
#pragma unroll
  for (int k = 0; k < rounds; ++k) {
    const int o = min(32 * k + lane, outputs - 1);
    scale[k] = p.scale[min(o / kH, 2)], base[k] = p.base[o];
  }
  wait_for_kernel_before();
  let_next_kernel_start();
  if (warp >= kSumWarps) return;
  for (int i = lane; i < rows * sums; i += 32) {
    of_warps[warp][i] = sum_slices(p.sums + int64_t{first} * sums + i, int64_t{p.rows} * sums, warp, p.slices);
  }
  __syncthreads();
  const auto sum_of = [&](int r, int i) {
    float sum = of_warps[0][r * sums + i];
#pragma unroll
    for (int w = 1; w < kSumWarps; ++w) sum += of_warps[w][r * sums + i];
    return sum;
  };
  for (int r = warp; r < rows; r += kSumWarps) {
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

// Channels of a row whose squares are summed by slices. Each warp adds these up by itself: lane l has slices l, l +
// 32, ..., then the lanes are added as a tree.
template <int kVecs, typename T>
__device__ inline void normalise_channels(const NormParams<T>& n, int block) {
  const int64_t r = block / n.blocks_a_row;
  const int first = block % n.blocks_a_row * kVecs * static_cast<int>(blockDim.x) * kVec;
  const auto channel = [&](int k) { return first + row_channel(k); };
  float w[kVecs][8] = {}, v[kVecs][8] = {};
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    if (channel(k) < n.width) load8(n.weight + channel(k), w[k]);
  }
  wait_for_kernel_before();
  let_next_kernel_start();
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    if (channel(k) < n.width) load8(n.rows + r * n.stride + channel(k), v[k]);
  }
  float sum = 0;
  for (int slice = threadIdx.x % 32; slice < n.slices; slice += 32) sum += n.squares[r * n.slices + slice];
  const float scale = rsqrtf(fmaf(warp_sum(sum), n.inverse_width, n.eps));
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    if (channel(k) - static_cast<int>(threadIdx.x) % 32 * kVec >= n.width) break;  // whole warps: the quantiser's groups
#pragma unroll
    for (int i = 0; i < 8; ++i) v[k][i] = round_bf16_if(w[k][i] * (v[k][i] * scale), n.round);
    if (channel(k) < n.width) store8(n.rows + r * n.stride + channel(k), v[k]);
    if (n.quantised == nullptr) continue;
    fake_quantise8<E4m3Group32>(v[k]);
    if (channel(k) < n.width) store8(n.quantised + r * n.quantised_stride + channel(k), v[k]);
  }
}

// The first blocks have coefficients, which take longer.
template <typename T, int kH, int kVecs>
__global__ void __launch_bounds__(kVecs == kManyNormVecs ? 1024 : kNormThreads, kVecs == kManyNormVecs ? 1 : 4)
    mhc_finish_kernel(const CoefficientsParams c, const NormParams<T> n, int coefficient_blocks) {
  if (static_cast<int>(blockIdx.x) < coefficient_blocks) return coefficients_of<kH>(c, blockIdx.x);
  const int block = static_cast<int>(blockIdx.x) - coefficient_blocks;
  if (n.squares) return normalise_channels<kVecs>(n, block);
  const RowWeights<kVecs> weights(n.weight, n.width);
  wait_for_kernel_before();
  let_next_kernel_start();
  T* row = n.rows + block * n.stride;
  normalise_row(row, row, n.quantised ? n.quantised + block * n.quantised_stride : nullptr, weights, n.width, n.eps,
                n.round);
}

}  // namespace deepinfer::cuda
