// From a warpgroup's sums to outputs in memory: scaled, rounded, fake-quantised, stored as rows of tokens.
//
// The matrix instruction leaves a thread with single outputs of several tokens; memory wants many outputs of one token.
// The sums pass through shared memory, kStagedTokens at a time, and each thread then holds four consecutive outputs, so
// that eight neighbours hold a group of 32 for the quantiser.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "backends/cuda/pipeline.cuh"
#include "backends/cuda/quantise.cuh"
#include "backends/cuda/values.cuh"
#include "backends/cuda/wgmma.cuh"
#include "ops/linear.h"

namespace deepinfer::cuda {

struct OutputFormat {
  std::byte* data;  // [tokens, outputs]
  int64_t stride;   // in elements
  int num_tokens;
  int num_outputs;
  float scale;    // a power of two
  bool is_bf16;   // the element type
  bool round;     // to BF16
  bool quantise;  // E4M3 in groups of 32
  bool vectors;   // rows may be written 16 bytes at a time
};

inline OutputFormat output_format(const ops::LinearTask& task, float scale) {
  const TensorView& out = task.out;
  OutputFormat format;
  format.data = out.data;
  format.stride = out.stride;
  format.num_tokens = static_cast<int>(out.rows);
  format.num_outputs = static_cast<int>(task.weight->rows);
  format.scale = scale;
  format.is_bf16 = out.type == ElementType::kBf16;
  format.round = task.round_output_to_bf16;
  format.quantise = task.quantise_output;
  format.vectors = reinterpret_cast<uintptr_t>(out.data) % 16 == 0 && out.stride % 8 == 0;
  return format;
}

// Four sums and those of the next part; `start`: of the first, which nothing is added to.
__device__ __forceinline__ void add_part(float* sum, float4 part, bool start) {
  sum[0] = start ? part.x : sum[0] + part.x, sum[1] = start ? part.y : sum[1] + part.y;
  sum[2] = start ? part.z : sum[2] + part.z, sum[3] = start ? part.w : sum[3] + part.w;
}

template <int N>
inline constexpr int kStagedTokens = N < 16    ? N
                                     : N <= 64 ? 16
                                               : 32;
inline constexpr int kStagedStride = 68;  // floats: 64 outputs, and no two threads of a store in one bank
template <int N>
inline constexpr int kStagingFloats = kStagedTokens<N>* kStagedStride;  // of one warpgroup

// Four values of a group of 32 that eight neighbouring lanes hold: ops::FakeQuant::kE4m3Group32, bit for bit.
__device__ __forceinline__ void fake_quant_e4m3(float (&x)[4]) {
  uint32_t largest = 0;
#pragma unroll
  for (float v : x) largest = max(largest, __float_as_uint(v) & 0x7FFFFFFFu);
#pragma unroll
  for (int lane = 1; lane < 8; lane *= 2) largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, lane));
  const float scale = E4m3Group32::scale(__uint_as_float(largest)), inverse = 1.0f / scale;
#pragma unroll
  for (float& v : x) {
    v = E4m3Group32::round(fminf(fmaxf(v * inverse, -E4m3Group32::kLargest), E4m3Group32::kLargest)) * scale;
  }
}

__device__ __forceinline__ void store_outputs(const OutputFormat& out, int token, int output, const float (&x)[4]) {
  const int64_t at = token * out.stride + output;
  const int count = min(4, out.num_outputs - output);
  if (out.is_bf16) {
    auto* to = reinterpret_cast<__nv_bfloat16*>(out.data) + at;
    __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(x[0], x[1]), __floats2bfloat162_rn(x[2], x[3])};
    if (out.vectors && count == 4) {
      *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(pairs);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i < count) to[i] = __float2bfloat16_rn(x[i]);
      }
    }
  } else {
    auto* to = reinterpret_cast<float*>(out.data) + at;
    if (out.vectors && count == 4) {
      *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i < count) to[i] = x[i];
      }
    }
  }
}

// write_outputs for sums that stay fp32.
template <int N>
__device__ __forceinline__ void write_sums(const OutputFormat& out, const float (&d)[N / 2], int first_token,
                                           int first_output, float* staging, int barrier, int thread) {
  constexpr int kTokens = kStagedTokens<N>;
  const int row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
#pragma unroll
  for (int chunk = 0; chunk < N / kTokens; ++chunk) {
    if (first_token + chunk * kTokens >= out.num_tokens) break;
    sync_threads(barrier, 128);  // the chunk before has been read
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        staging[(8 * j + column + i % 2) * kStagedStride + row + i / 2 * 8] = d[chunk * kTokens / 2 + 4 * j + i];
      }
    }
    sync_threads(barrier, 128);
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      const int local = 8 * j + thread / 16, token = first_token + chunk * kTokens + local;
      const int output = first_output + thread % 16 * 4;
      const float4 v = *reinterpret_cast<const float4*>(staging + local * kStagedStride + thread % 16 * 4);
      float x[4] = {v.x * out.scale, v.y * out.scale, v.z * out.scale, v.w * out.scale};
      if (token < out.num_tokens && output < out.num_outputs) store_outputs(out, token, output, x);
    }
  }
}

// Stores four 8x8 matrices of BF16 pairs, held like accumulators, as columns: lane 8i + r gives the address of column r
// of matrix i.
__device__ __forceinline__ void store_transposed(uint32_t address, const uint32_t (&pairs)[4]) {
#ifdef DI_SM90A
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
               : "memory");
#endif
}

// Eight rounded outputs of a token; four neighbouring lanes hold a group of 32.
__device__ __forceinline__ void store_rounded(const OutputFormat& out, int token, int output, uint4 bits) {
  float x[8];
  if (out.quantise || !out.is_bf16) unpack8(bits, x);
  if (out.quantise) {
    uint32_t largest = 0;
#pragma unroll
    for (float v : x) largest = max(largest, __float_as_uint(v) & 0x7FFFFFFFu);
    largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 1));
    largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 2));
    const float scale = E4m3Group32::scale(__uint_as_float(largest)), inverse = 1.0f / scale;
#pragma unroll
    for (float& v : x) {
      v = E4m3Group32::round(fminf(fmaxf(v * inverse, -E4m3Group32::kLargest), E4m3Group32::kLargest)) * scale;
    }
    bits = pack8(x);
  }
  if (token >= out.num_tokens || output >= out.num_outputs) return;
  const int64_t at = token * out.stride + output;
  if (out.is_bf16 && out.vectors && output + 8 <= out.num_outputs) {
    *reinterpret_cast<uint4*>(reinterpret_cast<Bf16*>(out.data) + at) = bits;
    return;
  }
  unpack8(bits, x);
  const float low[4] = {x[0], x[1], x[2], x[3]}, high[4] = {x[4], x[5], x[6], x[7]};
  store_outputs(out, token, output, low);
  if (output + 4 < out.num_outputs) store_outputs(out, token, output + 4, high);
}

// write_outputs for sums that are rounded: staged as BF16, a token's 64 outputs in 128 bytes whose 16-byte units stand
// in the order of unit ^ (token % 8).
template <int N>
__device__ __forceinline__ void write_rounded(const OutputFormat& out, const float (&d)[N / 2], int first_token,
                                              int first_output, float* staging, int barrier, int thread) {
  constexpr int kTokens = N < 16 ? N : 2 * kStagedTokens<N> < N ? 2 * kStagedTokens<N> : N;
  const int warp = thread / 32, lane = thread % 32;
  // Lane 8i + r: column (token) r of the rows' half i % 2; with 16 tokens, of the second eight for i >= 2.
  const int to_token = lane % 8 + lane / 16 * 8, to_unit = 2 * warp + lane / 8 % 2;
  const uint32_t base = shared_address(staging);
#pragma unroll
  for (int chunk = 0; chunk < N / kTokens; ++chunk) {
    if (first_token + chunk * kTokens >= out.num_tokens) break;
    sync_threads(barrier, 128);  // the chunk before has been read
#pragma unroll
    for (int j = 0; j < (kTokens + 15) / 16; ++j) {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = chunk * kTokens / 2 + 8 * j + 2 * i;
        // Eight tokens fill half of the matrices: the others are the same again.
        pairs[i] = pack_bf16(d[at % (N / 2)] * out.scale, d[(at + 1) % (N / 2)] * out.scale);
      }
      const int token = 16 * j + to_token;
      store_transposed(base + (token < kTokens ? token : token % 8) * 128 + ((to_unit ^ (token % 8)) << 4), pairs);
    }
    sync_threads(barrier, 128);
#pragma unroll
    for (int j = 0; j < (kTokens + 15) / 16; ++j) {
      const int token = 16 * j + thread / 8;
      const uint4 bits = *reinterpret_cast<const uint4*>(reinterpret_cast<const std::byte*>(staging) +
                                                         (token % kTokens) * 128 + ((thread % 8 ^ token % 8) << 4));
      const int64_t at = token < kTokens ? first_token + chunk * kTokens + token : out.num_tokens;
      store_rounded(out, static_cast<int>(at), first_output + thread % 8 * 8, bits);
    }
  }
}

// One warpgroup's 64 outputs from `first_output` on, of N tokens from `first_token` on. `staging`: kStagingFloats<N> at
// a multiple of 16 bytes, of its own; `barrier`: a barrier of its own. `thread`: 0 ... 127.
template <int N>
__device__ __forceinline__ void write_outputs(const OutputFormat& out, const float (&d)[N / 2], int first_token,
                                              int first_output, float* staging, int barrier, int thread) {
  if (out.round) {
    write_rounded<N>(out, d, first_token, first_output, staging, barrier, thread);
  } else {
    write_sums<N>(out, d, first_token, first_output, staging, barrier, thread);
  }
}

}  // namespace deepinfer::cuda
