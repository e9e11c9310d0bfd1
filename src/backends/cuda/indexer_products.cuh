// Dot products of a tile of keys with queries, and what becomes of them: BF16 products, fp32 sums; a thread adds 8
// heads in order, two exchanges add four threads. The same additions in every kernel, so a score depends on its query
// and key alone.
#pragma once

#include "backends/cuda/indexer_keys.cuh"
#include "backends/cuda/indexer_rows.cuh"
#include "backends/cuda/pipeline.cuh"
#include "backends/cuda/wgmma.cuh"

namespace deepinfer::cuda {

inline constexpr int kIndexHeads = 32;
inline constexpr int kQueryBytes = kIndexHeads * kKeyChannels * 2;

// B operand without swizzle: 8 heads x 8 columns are 128 contiguous bytes, the next 8 columns follow, then 8 heads.
// The lower word, which every thread of a warp gets from the first: the instruction takes it from a uniform register.
__device__ __forceinline__ uint32_t query_operand(const std::byte* queries) {
  return __shfl_sync(~0u, (shared_address(queries) & 0x3ffff) >> 4 | 128u >> 4 << 16, 0);
}

// Starts d = the 8 instructions of a tile's dot products with a query or four.
template <int kCount>
__device__ __forceinline__ void start_products(float (&d)[kCount], const uint32_t (&a)[32], uint32_t queries) {
  wgmma_fence();
#pragma unroll
  for (int s = 0; s < 8; ++s) {
    Wgmma<kCount * 2>::mma(d, a + 4 * s, uint64_t{2048 >> 4} << 32 | (queries + 16 * s), s > 0);
  }
  wgmma_commit();
}

// Brings the queries of `num_tokens` tokens and half their weights to shared memory, in the order of columns that
// load_keys has, or, kByTable, StoredKeys of E2M1; token_of(i): the i-th of the tokens.
template <int kThreads, bool kByTable, typename Shared, typename TokenOf>
__device__ __forceinline__ void load_queries(const IndexScoreParams& p, Shared& s, int num_tokens,
                                             const TokenOf& token_of) {
  constexpr int kGroups = kIndexHeads / 8, kWarps = kThreads / 32;
  const int c = threadIdx.x % 4, h = threadIdx.x % 32 / 4;
#pragma unroll 2
  for (int i = threadIdx.x / 32; i < num_tokens * kGroups; i += kWarps) {
    const int head = i % kGroups * 8 + h;
    const auto* q = reinterpret_cast<const uint16_t*>(p.q.data) + token_of(i / kGroups) * p.q.stride;
    uint4 from[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) from[j] = *reinterpret_cast<const uint4*>(q + head * kKeyChannels + 32 * c + 8 * j);
    auto* to = reinterpret_cast<uint32_t*>(s.queries + i * 2048 + h * 16 + c * 4);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      to[(4 * j) * 32] = kByTable ? from[j].x : __byte_perm(from[j].x, from[j].z, 0x5410);
      to[(4 * j + 1) * 32] = kByTable ? from[j].z : __byte_perm(from[j].x, from[j].z, 0x7632);
      to[(4 * j + 2) * 32] = kByTable ? from[j].y : __byte_perm(from[j].y, from[j].w, 0x5410);
      to[(4 * j + 3) * 32] = kByTable ? from[j].w : __byte_perm(from[j].y, from[j].w, 0x7632);
    }
  }
  for (int i = threadIdx.x; i < num_tokens * kIndexHeads; i += kThreads) {
    const int head = i % kIndexHeads;
    s.weights[i / kIndexHeads][head % 8 / 2][head / 8 * 2 + head % 2] =
        0.5f * load_element(p.head_weights, token_of(i / kIndexHeads), head);
  }
}

// sum over the thread's 8 heads of relu(dot) * weight, for the row of `half`. relu(x) is (x + |x|) / 2, exactly.
__device__ __forceinline__ float weigh(const float* dots, int half, const float (&weights)[8]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float dot = dots[i / 2 * 4 + half * 2 + i % 2];
    sum = fmaf(dot + fabsf(dot), weights[i], sum);
  }
  return sum;
}

__device__ __forceinline__ void load_weights(const float* from, float (&weights)[8]) {
  const float4 a = *reinterpret_cast<const float4*>(from), b = *reinterpret_cast<const float4*>(from + 4);
  weights[0] = a.x, weights[1] = a.y, weights[2] = a.z, weights[3] = a.w;
  weights[4] = b.x, weights[5] = b.y, weights[6] = b.z, weights[7] = b.w;
}

// Of two sums, the one that the thread keeps, plus what the thread `distance` further kept of it.
__device__ __forceinline__ float exchange(float even, float odd, bool is_odd, int distance) {
  return (is_odd ? odd : even) + __shfl_xor_sync(~0u, is_odd ? even : odd, distance);
}

// The largest of the scores of the eight neighbouring keys that lanes 1, 4 and 8 apart have.
__device__ __forceinline__ uint32_t largest_of_eight(uint32_t score) {
  uint32_t best = max(score, __shfl_xor_sync(~0u, score, 1));
  best = max(best, __shfl_xor_sync(~0u, best, 4));
  return max(best, __shfl_xor_sync(~0u, best, 8));
}

}  // namespace deepinfer::cuda
