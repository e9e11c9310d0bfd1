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
#include "ops/linear.h"

namespace deepinfer::cuda {

struct OutputFormat {
  std::byte* data;  // [tokens, outputs]
  int64_t stride;   // in elements
  int num_tokens;
  int num_outputs;
  float scale;       // a power of two
  bool is_bf16;      // the element type
  bool round;        // to BF16
  bool quantise;     // E4M3 in groups of 32
  bool vectors;      // rows may be written four elements at a time
};

inline OutputFormat output_format(const ops::LinearTask& task, float scale) {
  const TensorView& out = task.out;
  const int64_t vector = 4 * element_bytes(out.type);
  OutputFormat format;
  format.data = out.data;
  format.stride = out.stride;
  format.num_tokens = static_cast<int>(out.rows);
  format.num_outputs = static_cast<int>(task.weight->rows);
  format.scale = scale;
  format.is_bf16 = out.type == ElementType::kBf16;
  format.round = task.round_output_to_bf16;
  format.quantise = task.quantise_output;
  format.vectors = reinterpret_cast<uintptr_t>(out.data) % vector == 0 && out.stride % 4 == 0;
  return format;
}

template <int N>
inline constexpr int kStagedTokens = N < 32 ? N : 32;
inline constexpr int kStagedStride = 68;  // floats: 64 outputs, and no two threads of a store in one bank
template <int N>
inline constexpr int kStagingFloats = kStagedTokens<N> * kStagedStride;  // of one warpgroup

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

// One warpgroup's 64 outputs from `first_output` on, of N tokens from `first_token` on. `staging`: kStagingFloats<N>
// of its own; `barrier`: a barrier of its own. `thread`: 0 ... 127.
template <int N>
__device__ __forceinline__ void write_outputs(const OutputFormat& out, const float (&d)[N / 2], int first_token,
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
      if (out.round) {
#pragma unroll
        for (float& value : x) value = round_bf16(value);
      }
      if (out.quantise) fake_quant_e4m3(x);
      if (token < out.num_tokens && output < out.num_outputs) store_outputs(out, token, output, x);
    }
  }
}

}  // namespace deepinfer::cuda
