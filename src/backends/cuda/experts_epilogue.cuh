// From the sums of an item to rows in memory: the activation of gate and up, or plain products.
//
// Sums pass through shared memory, kStagedTokens at a time, so that a thread holds four consecutive outputs of a token
// and eight neighbours a group of 32.
#pragma once

#include "backends/cuda/experts_items.cuh"
#include "backends/cuda/gemm_epilogue.cuh"

namespace deepinfer::cuda {

struct RowsOut {
  __nv_bfloat16* data;
  int64_t stride;
  int num_outputs;
};

__device__ __forceinline__ void store_row4(const RowsOut& out, int row, int output, const float (&x)[4]) {
  if (output >= out.num_outputs) return;  // outputs come in fours
  uint2 bits = {pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3])};
  *reinterpret_cast<uint2*>(out.data + row * out.stride + output) = bits;
}

template <int kTokens, int N>
__device__ __forceinline__ void stage_sums(float* staging, const float (&d)[N / 2], int chunk, float scale,
                                           int thread) {
  const int row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      staging[(8 * j + column + i % 2) * kStagedStride + row + i / 2 * 8] = d[chunk * kTokens / 2 + 4 * j + i] * scale;
    }
  }
}

struct AboutRow {
  float weight;
  int column;  // of the sums
};

// Both warpgroups: the first has the sums of 64 gates, the second those of the same 64 ups. `staging`: room for
// kTokens of both. `about_row`: of row i of the item; its column is i unless there are no more than kTokens.
template <int kTokens, int N, typename About>
__device__ __forceinline__ void write_activation(const RowsOut& out, const float (&d)[N / 2], float scale,
                                                 int first_row, int num_rows, int first_output, About about_row,
                                                 float limit, bool quantise, float* staging, int consumer) {
  static_assert(kTokens <= 16);
  const int group = consumer / 128, local = consumer / 16, output = consumer % 16 * 4;
#pragma unroll
  for (int chunk = 0; chunk < N / kTokens; ++chunk) {
    if (chunk * kTokens >= num_rows) break;
    const int row = chunk * kTokens + local;
    AboutRow about = {1.0f, 0};
    if (local < kTokens && row < num_rows) about = about_row(row);
    sync_threads(1, 256);  // the chunk before has been read
    stage_sums<kTokens, N>(staging + group * kTokens * kStagedStride, d, chunk, scale, consumer % 128);
    sync_threads(1, 256);
    if (local >= kTokens || (row & ~1) >= num_rows) continue;  // by whole warps: they have two rows each
    const float* sums = staging + (about.column % kTokens) * kStagedStride + output;
    const float4 gate = *reinterpret_cast<const float4*>(sums);
    const float4 up = *reinterpret_cast<const float4*>(sums + kTokens * kStagedStride);
    const float gates[4] = {gate.x, gate.y, gate.z, gate.w}, ups[4] = {up.x, up.y, up.z, up.w};
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = activate(round_bf16(gates[i]), round_bf16(ups[i]), about.weight, limit);
    if (quantise) fake_quant_e4m3(x);
    if (row < num_rows) store_row4(out, first_row + row, first_output + output, x);
  }
}

// One warpgroup's 64 outputs. `staging`: its own; `barrier` too.
template <int kTokens, int N>
__device__ __forceinline__ void write_products(const RowsOut& out, const float (&d)[N / 2], float scale, int first_row,
                                               int num_rows, int first_output, float* staging, int barrier,
                                               int thread) {
#pragma unroll
  for (int chunk = 0; chunk < N / kTokens; ++chunk) {
    if (chunk * kTokens >= num_rows) break;
    sync_threads(barrier, 128);
    stage_sums<kTokens, N>(staging, d, chunk, scale, thread);
    sync_threads(barrier, 128);
#pragma unroll
    for (int first = 0; first < kTokens; first += 8) {
      const int local = first + thread / 16, token = chunk * kTokens + local, column = thread % 16 * 4;
      const float4 v = *reinterpret_cast<const float4*>(staging + local * kStagedStride + column);
      const float x[4] = {v.x, v.y, v.z, v.w};
      if (token < num_rows) store_row4(out, first_row + token, first_output + column, x);
    }
  }
}

}  // namespace deepinfer::cuda
