// The second kernel of mhc.cu: what needs sums over whole rows. The first blocks make coefficients from the partial
// sums that the pass over the streams left, the others normalise the collapsed rows by its partial squares.
#pragma once

#include "backends/cuda/launch.cuh"
#include "backends/cuda/mhc_sinkhorn.cuh"
#include "backends/cuda/row_norm.cuh"

namespace deepinfer::cuda {

inline constexpr int kCoefficientRows = 8;  // most that a block of the second kernel has
// Partial sums: those of slices w, w + kSumParts, ... are added for each w, by one warp, then these in order.
inline constexpr int kSumParts = 8;
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
  const float* squares;  // NormBy::kChannels: [rows, slices]
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

// The coefficients of some rows by one block.
template <int kH>
__device__ inline void coefficients_of(const CoefficientsParams& p, int block) {
  constexpr int outputs = kH * (kH + 2), sums = outputs + 1, rounds = (outputs + 31) / 32;
  __shared__ float parts[kSumParts][kCoefficientRows * sums];
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
  for (int part = warp; part < kSumParts; part += warps) {
    for (int i = lane; i < rows * sums; i += 32) {
      parts[part][i] = sum_slices(p.sums + int64_t{first} * sums + i, int64_t{p.rows} * sums, part, p.slices);
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

// The scale of a row from the squares of its slices, in every lane: lane l has slices l, l + 32, ..., then the lanes
// are added as a tree.
__device__ inline float scale_of(const float* squares, int slices, float inverse_width, float eps) {
  float sum = 0;
  for (int slice = threadIdx.x % 32; slice < slices; slice += 64) {
    const float first = squares[slice], second = slice + 32 < slices ? squares[slice + 32] : 0.0f;
    sum = sum + first + second;
  }
  return rsqrtf(fmaf(warp_sum(sum), inverse_width, eps));
}

// Eight channels of a row, at c, and their quantised form. By whole warps: the quantiser's groups.
template <typename T>
__device__ inline void normalise8(const NormParams<T>& n, int64_t r, int c, float (&v)[8], const float (&w)[8],
                                  float scale) {
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = round_bf16_if(w[i] * (v[i] * scale), n.round);
  if (c < n.width) store8(n.rows + r * n.stride + c, v);
  if (n.quantised == nullptr) return;
  fake_quantise8<E4m3Group32>(v);
  if (c < n.width) store8(n.quantised + r * n.quantised_stride + c, v);
}

// Few rows: some channels, of a row whose squares have been summed by slices.
template <typename T>
__device__ inline void normalise_channels(const NormParams<T>& n, int block) {
  const int64_t r = block / n.blocks_a_row;
  const int c = block % n.blocks_a_row * static_cast<int>(blockDim.x) * kVec + row_channel(0);
  float w[8] = {}, v[8] = {};
  if (c < n.width) load8(n.weight + c, w);
  wait_for_kernel_before();
  if (c < n.width) load8(n.rows + r * n.stride + c, v);
  const float scale = scale_of(n.squares + r * n.slices, n.slices, n.inverse_width, n.eps);
  normalise8(n, r, c, v, w, scale);
}

// Many rows: a row, whose squares are summed here as mhc_streams.cuh would have: by slices of four spans of four lanes.
template <int kVecs, typename T>
__device__ inline void normalise_whole_row(const NormParams<T>& n, int64_t r) {
  __shared__ float squares[kMostNormGroups * 2];
  const int lane = threadIdx.x % 32;
  wait_for_kernel_before();
  float v[kVecs][8] = {};
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    if (row_channel(k) < n.width) load8(n.rows + r * n.stride + row_channel(k), v[k]);
  }
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    float square = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) square = fmaf(v[k][i], v[k][i], square);
    square += __shfl_xor_sync(0xFFFFFFFFu, square, 1);
    square += __shfl_xor_sync(0xFFFFFFFFu, square, 2);
    float of_slice = __shfl_sync(0xFFFFFFFFu, square, lane & 16);
#pragma unroll
    for (int span = 1; span < 4; ++span) of_slice += __shfl_sync(0xFFFFFFFFu, square, (lane & 16) + 4 * span);
    if (lane % 16 == 0 && row_channel(k) < n.width) squares[row_channel(k) / (16 * kVec)] = of_slice;
  }
  __syncthreads();
  const float scale = scale_of(squares, n.slices, n.inverse_width, n.eps);
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    if (row_channel(k) - lane * kVec >= n.width) break;
    float w[8] = {};
    if (row_channel(k) < n.width) load8(n.weight + row_channel(k), w);
    normalise8(n, r, row_channel(k), v[k], w, scale);
  }
}

enum class NormBy { kChannels, kWholeRow, kGeneric };

// The first blocks have coefficients, which take longer.
template <typename T, int kH, NormBy kNorm>
__global__ void __launch_bounds__(kNorm == NormBy::kGeneric ? 1024 : 256, kNorm == NormBy::kGeneric ? 1 : 3)
    mhc_finish_kernel(const CoefficientsParams c, const NormParams<T> n, int coefficient_blocks) {
  let_next_kernel_start();
  if (static_cast<int>(blockIdx.x) < coefficient_blocks) return coefficients_of<kH>(c, blockIdx.x);
  const int block = static_cast<int>(blockIdx.x) - coefficient_blocks;
  if constexpr (kNorm == NormBy::kChannels) {
    normalise_channels(n, block);
  } else if constexpr (kNorm == NormBy::kWholeRow) {
    normalise_whole_row<kManyNormVecs>(n, block);
  } else {
    const RowWeights<kManyNormVecs> weights(n.weight, n.width);
    wait_for_kernel_before();
    T* row = n.rows + block * n.stride;
    normalise_row(row, row, n.quantised ? n.quantised + block * n.quantised_stride : nullptr, weights, n.width, n.eps,
                  n.round);
  }
}

}  // namespace deepinfer::cuda
