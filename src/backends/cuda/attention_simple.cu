// Attention for any shape, element type and row type, in fp32: `exact` numerics and small models.
//
// A thread block is a token and 8 of its heads, a warp one head. Keys pass twice a block of 64, as fp32 tiles of 128
// columns: once for the scores, once for the sums. Every sum is over ascending columns or keys.
#include <cuda_bf16.h>

#include <cmath>

#include "backends/cuda/attention_kernels.h"
#include "backends/cuda/attention_keys.cuh"
#include "backends/cuda/launch.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kHeadsPerBlock = 8;
constexpr int kThreads = 32 * kHeadsPerBlock;
constexpr int kTileColumns = 128;
constexpr int kTileStride = kTileColumns + 1;  // a warp reads a column of 32 rows without a bank twice

// What does not depend on the head dimension; q and the sums follow, [heads][head_dim] each.
struct Shared {
  float tile[kKeysPerBlock * kTileStride];
  float weights[kHeadsPerBlock][kKeysPerBlock];
  const std::byte* rows[kKeysPerBlock];
};

__device__ float to_float(float x) { return x; }
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ void store(float* to, float x) { *to = x; }
__device__ void store(__nv_bfloat16* to, float x) { *to = __float2bfloat16_rn(x); }
__device__ float round_if(float x, bool round) { return round ? __bfloat162float(__float2bfloat16_rn(x)) : x; }

__device__ float e2m1(uint32_t code) {
  const uint32_t m = code & 7;  // 0 and 0.5 are the format's subnormals
  const float magnitude = m < 2 ? 0.5f * m : __uint_as_float((m << 22) + (126u << 23));
  return code & 8 ? -magnitude : magnitude;
}
// Codes below 8 become fp32 subnormals and the product is exact.
__device__ float e4m3(uint32_t code) { return __uint_as_float((code & 0x80) << 24 | (code & 0x7F) << 20) * 0x1p120f; }
__device__ float e8m0(uint32_t code) { return __uint_as_float(code << 23); }

__device__ float row_value(ops::RowType type, const std::byte* row, int64_t width, int64_t column) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(row);
  switch (type) {
    case ops::RowType::kF32:
      return reinterpret_cast<const float*>(row)[column];
    case ops::RowType::kBf16:
      return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(row)[column]);
    case ops::RowType::kE4m3Group32:
      return e4m3(bytes[column]) * e8m0(bytes[width + column / 32]);
    case ops::RowType::kE2m1Group16:
      return e2m1(bytes[column / 2] >> (column % 2 * 4)) * e4m3(bytes[width / 2 + column / 16]);
    case ops::RowType::kE2m1Group32:
      return e2m1(bytes[column / 2] >> (column % 2 * 4)) * e8m0(bytes[width / 2 + column / 32]);
  }
  return 0;
}

// Keys [begin, begin + count), columns [first, first + kTileColumns) or up to the row's end.
__device__ void load_tile(Shared& s, const AttentionParams& p, int num_window, int begin, int count, int first) {
  const int columns = min(kTileColumns, p.head_dim - first);
  for (int i = threadIdx.x; i < count * columns; i += kThreads) {
    const int k = i / columns, c = i % columns;
    const ops::RowType type = begin + k < num_window ? p.window.type : p.compressed.type;
    s.tile[k * kTileStride + c] = row_value(type, s.rows[k], p.head_dim, first + c);
  }
}

__device__ float warp_max(float x) {
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}
__device__ float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

__device__ void rotate(float* pair, float c, float s, bool round) {
  const float x = pair[0], y = pair[1];
  pair[0] = round_if(__fsub_rn(__fmul_rn(x, c), __fmul_rn(y, s)), round);
  pair[1] = round_if(__fadd_rn(__fmul_rn(x, s), __fmul_rn(y, c)), round);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) simple_kernel(const AttentionParams p) {
  extern __shared__ float4 memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  wait_for_kernel_before();
  let_next_kernel_start();
  const int dim = p.head_dim, groups = (p.num_heads + kHeadsPerBlock - 1) / kHeadsPerBlock;
  const int token = blockIdx.x / groups, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int head = blockIdx.x % groups * kHeadsPerBlock + warp;
  const bool mine = head < p.num_heads;
  float* q = reinterpret_cast<float*>(&s + 1) + warp * dim;
  float* sums = q + kHeadsPerBlock * dim;
  const KeyList keys = key_list(p, token);
  if (keys.num_keys == 0) return;
  const float* cosine = p.cosine + token * p.cosine_stride;
  const float* sine = p.sine + token * p.sine_stride;
  const int rotated = dim - 2 * p.num_pairs;

  for (int d = lane; d < dim; d += 32) {
    q[d] = mine ? to_float(reinterpret_cast<const T*>(p.q)[token * p.q_stride + int64_t{head} * dim + d]) : 0.0f;
    sums[d] = 0;
  }
  __syncwarp();
  for (int j = lane; j < p.num_pairs; j += 32) rotate(q + rotated + 2 * j, cosine[j], sine[j], p.round_to_bf16);

  const float scale = 1.0f / sqrtf(static_cast<float>(dim));
  float largest = kNoScore, total = 0;
  for (int begin = 0; begin < keys.num_keys; begin += kKeysPerBlock) {
    const int count = min(kKeysPerBlock, keys.num_keys - begin);
    __syncthreads();
    for (int k = threadIdx.x; k < count; k += kThreads) {
      s.rows[k] = key_address(p, keys, token, begin + k);
    }
    float score0 = 0, score1 = 0;
    for (int first = 0; first < dim; first += kTileColumns) {
      __syncthreads();
      load_tile(s, p, keys.num_window, begin, count, first);
      __syncthreads();
      const int columns = min(kTileColumns, dim - first);
      const float* k0 = s.tile + lane * kTileStride;
      const float* k1 = k0 + 32 * kTileStride;
      if (lane < count) {
        for (int c = 0; c < columns; ++c) score0 = fmaf(q[first + c], k0[c], score0);
      }
      if (lane + 32 < count) {
        for (int c = 0; c < columns; ++c) score1 = fmaf(q[first + c], k1[c], score1);
      }
    }
    score0 = lane < count ? score0 * scale : -INFINITY;
    score1 = lane + 32 < count ? score1 * scale : -INFINITY;
    const float before = largest;
    largest = fmaxf(largest, warp_max(fmaxf(score0, score1)));
    const float weight0 = expf(score0 - largest), weight1 = expf(score1 - largest), decay = expf(before - largest);
    total = total * decay + warp_sum(weight0 + weight1);
    s.weights[warp][lane] = round_if(weight0, p.round_to_bf16);
    s.weights[warp][lane + 32] = round_if(weight1, p.round_to_bf16);
    for (int first = 0; first < dim; first += kTileColumns) {
      __syncthreads();
      if (dim > kTileColumns) load_tile(s, p, keys.num_window, begin, count, first);
      __syncthreads();
      for (int c = lane; c < min(kTileColumns, dim - first); c += 32) {
        float sum = sums[first + c] * decay;
        for (int k = 0; k < count; ++k) sum = fmaf(s.weights[warp][k], s.tile[k * kTileStride + c], sum);
        sums[first + c] = sum;
      }
    }
  }
  if (!mine) return;
  total += expf(p.sink[head] - largest);
  for (int d = lane; d < dim; d += 32) sums[d] = round_if(sums[d] / total, p.round_to_bf16);
  __syncwarp();
  for (int j = lane; j < p.num_pairs; j += 32) rotate(sums + rotated + 2 * j, cosine[j], -sine[j], p.round_to_bf16);
  __syncwarp();
  T* out = reinterpret_cast<T*>(p.out) + token * p.out_stride + int64_t{head} * dim;
  for (int d = lane; d < dim; d += 32) store(out + d, sums[d]);
}

template <typename T>
void launch_simple(Stream& stream, const AttentionParams& p) {
  const size_t bytes = sizeof(Shared) + sizeof(float) * 2 * kHeadsPerBlock * p.head_dim;
  static const size_t largest = [] {
    int limit = 0;
    DI_CUDA_CHECK(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    DI_CUDA_CHECK(cudaFuncSetAttribute(simple_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, limit));
    return static_cast<size_t>(limit);
  }();
  DI_CHECK(bytes <= largest, "attention: head_dim {} needs {} bytes of shared memory of {}", p.head_dim, bytes,
           largest);
  const int groups = (p.num_heads + kHeadsPerBlock - 1) / kHeadsPerBlock;
  launch(stream, Start::kEarly, dim3(p.num_tokens * groups), kThreads, bytes, simple_kernel<T>, p);
}

}  // namespace

void attention_simple(Stream& stream, const ops::AttentionArgs& args) {
  const AttentionParams p = params_of(args);
  DI_CHECK(args.q.type == args.out.type, "attention: q and the result are of two types");
  if (args.q.type == ElementType::kF32) {
    launch_simple<float>(stream, p);
  } else {
    launch_simple<__nv_bfloat16>(stream, p);
  }
}

}  // namespace deepinfer::cuda
