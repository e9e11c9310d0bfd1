// What the two tensor-core kernels of attention share, so that they give the same bits: constants of the shape, the
// rotation, a block's weights and their sum, and small moves of data.
//
// exp(x) is exp2(x log2(e)); the factor, the scores' own and that of the rows (row_scale) are one. Weights of a head's
// block: exp2((score - largest) * score_scale), largest being the running maximum. Their sum: each 16 keys first
// (thread_sum, then the four threads), then the block's four sums as (0 + 1) + (2 + 3), then the running total
// (add_block).
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "backends/cuda/attention_convert.cuh"
#include "backends/cuda/attention_keys.cuh"
#include "backends/cuda/values.cuh"

namespace deepinfer::cuda {

inline constexpr int kHeads = 64;
inline constexpr int kDim = 512;
inline constexpr int kPairs = 32;  // rotated
inline constexpr int kMaxWindow = 128;
inline constexpr int kMaxSelected = 512;
inline constexpr int kMaxKeys = kMaxWindow + kMaxSelected;
inline constexpr float kLog2e = 1.44269504088896341f;
// By the kind of the window's rows. 22.6... is the root of kDim.
__host__ __device__ constexpr float score_scale(RowKind kind) {
  return kLog2e / (22.627416997969522f * row_scale(kind));
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float weight_of(float score, float largest, float scale) {
  return exp2_fast((score - largest) * scale);
}

// Sum over the 16 keys of which the four threads of a row hold two pairs each.
__device__ __forceinline__ float thread_sum(float a, float b, float c, float d) { return (a + b) + (c + d); }
__device__ __forceinline__ float add_block(float total, float decay, float sum) { return fmaf(total, decay, sum); }

// What turns a head's weighted sum into the result.
template <RowKind kWindow>
__device__ __forceinline__ float head_factor(float total, float largest, float sink) {
  return (1.0f / row_scale(kWindow)) / (total + exp2_fast(sink * kLog2e - largest * score_scale(kWindow)));
}

// Two BF16 as a pair of channels, turned.
__device__ __forceinline__ uint32_t rotate(uint32_t pair, float c, float s) {
  const float x = low_bf16(pair), y = high_bf16(pair);
  return pack_bf16(__fsub_rn(__fmul_rn(x, c), __fmul_rn(y, s)), __fadd_rn(__fmul_rn(x, s), __fmul_rn(y, c)));
}

__device__ __forceinline__ void copy_unit(uint32_t to, const std::byte* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// `there` false: zeros, and `from` is not read.
__device__ __forceinline__ void copy_unit_or_zero(uint32_t to, const std::byte* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// 16 bytes of shared memory as four turned pairs.
__device__ __forceinline__ void rotate_unit(uint32_t at, const float (&cosine)[4], const float (&sine)[4]) {
  uint32_t x[4];
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(at)
               : "memory");
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = rotate(x[i], cosine[i], sine[i]);
  store_unit(at, x[0], x[1], x[2], x[3]);
}

// Of four words a thread, a quad of threads gets word 0 of all four in its first thread, and so on. Several fours side
// by side, since each waits twice for the other threads.
template <int kFours>
__device__ __forceinline__ void transpose_quads(uint32_t (&w)[kFours][4], int c) {
  const bool odd = c & 1, upper = c & 2;
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const uint32_t x = __shfl_xor_sync(~0u, odd ? w[i][0] : w[i][1], 1);
    const uint32_t y = __shfl_xor_sync(~0u, odd ? w[i][2] : w[i][3], 1);
    if (odd) {
      w[i][0] = x, w[i][2] = y;
    } else {
      w[i][1] = x, w[i][3] = y;
    }
  }
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const uint32_t u = __shfl_xor_sync(~0u, upper ? w[i][0] : w[i][2], 2);
    const uint32_t v = __shfl_xor_sync(~0u, upper ? w[i][1] : w[i][3], 2);
    if (upper) {
      w[i][0] = u, w[i][1] = v;
    } else {
      w[i][2] = u, w[i][3] = v;
    }
  }
}

// A thread's sums of channels from first_channel on to the results of its two heads. turn(pair, j) rotates the pair of
// channels 8j + 2c and 8j + 2c + 1 of them, where they are rotated.
template <int kCount, typename Turn>
__device__ __forceinline__ void write_out(const AttentionParams& p, int token, int first_channel,
                                          const float (&sums)[kCount], const float (&factor)[2], const int (&heads)[2],
                                          int c, Turn turn) {
  std::byte* out = p.out + (token * p.out_stride + heads[0] * kDim + first_channel) * 2 + c * 16;
#pragma unroll
  for (int j = 0; j < kCount / 4; j += 4) {
    uint32_t words[2][4];  // of both heads
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int r = i / 4, unit = j + i % 4, at = 4 * unit + 2 * r;
      words[r][i % 4] = turn(pack_bf16(sums[at] * factor[r], sums[at + 1] * factor[r]), unit);
    }
    transpose_quads(words, c);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      *reinterpret_cast<uint4*>(out + (r * 8 * kDim + j * 8) * 2) =
          uint4{words[r][0], words[r][1], words[r][2], words[r][3]};
    }
  }
}

// Starts the way of a row of BF16 to L2.
__device__ __forceinline__ void prefetch_row(const std::byte* row) {
#pragma unroll
  for (int at = 0; at < kDim * 2; at += 128) asm volatile("prefetch.global.L2 [%0];" ::"l"(row + at) : "memory");
}

template <RowKind kWindow, RowKind kCompressed>
__device__ __forceinline__ RowKind row_kind(const KeyList& keys, int key) {
  return key < keys.num_window ? kWindow : (key < keys.num_keys ? kCompressed : RowKind::kNone);
}

}  // namespace deepinfer::cuda
