// The second kernel of mhc.cu: what needs sums over whole rows. The first blocks make coefficients from the partial
// sums that the pass over the streams left, the others normalise the collapsed rows by its partial squares.
#pragma once

#include "backends/cuda/launch.cuh"
#include "backends/cuda/mhc_coefficients.cuh"
#include "backends/cuda/row_norm.cuh"

namespace deepinfer::cuda {

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
  touch(c);
  touch(n);
  if (static_cast<int>(blockIdx.x) < coefficient_blocks) {
    return coefficients_of<kH>(c, blockIdx.x);
  }
  const int block = static_cast<int>(blockIdx.x) - coefficient_blocks;
  if constexpr (kNorm == NormBy::kChannels) {
    normalise_channels(n, block);
  } else if constexpr (kNorm == NormBy::kWholeRow) {
    // The last rows first: some of them are still in the L2.
    normalise_whole_row<kManyNormVecs>(n, static_cast<int>(gridDim.x - 1 - blockIdx.x));
  } else {
    const RowWeights<kManyNormVecs> weights(n.weight, n.width);
    wait_for_kernel_before();
    T* row = n.rows + block * n.stride;
    normalise_row(row, row, n.quantised ? n.quantised + block * n.quantised_stride : nullptr, weights, n.width, n.eps,
                  n.round);
  }
}

}  // namespace deepinfer::cuda
