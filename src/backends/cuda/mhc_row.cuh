// What mhc_streams.cuh does with eight channels of a row's four BF16 streams, in one lane: update, collapse, sum of
// squares; and the projection of 16 rows by a warp.
//
// The projection's input is BF16 and its fp32 weights are sums of three BF16 numbers (8 + 8 + 8 of 24 bits), so tensor
// cores multiply without loss and add in fp32.
#pragma once

#include "backends/cuda/values.cuh"

namespace deepinfer::cuda {

inline constexpr int kMhcStreams = 4;
inline constexpr int kMhcOutputs = kMhcStreams * (kMhcStreams + 2);
inline constexpr int kMhcSums = kMhcOutputs + 1;  // and the sum of squares
inline constexpr int kMhcSplits = 3;
inline constexpr int kMhcColumnTiles = kMhcOutputs / 8;

struct MhcStreamsParams {
  Bf16* streams;
  int64_t streams_stride;
  const Bf16* y;
  int64_t y_stride;
  Bf16* collapsed;
  int64_t collapsed_stride;
  const float *pre, *post, *mix;
  int64_t pre_stride, post_stride, mix_stride;
  const float* fn;  // [kMhcOutputs, 4 * hidden]
  float* sums;      // [slices, rows, kMhcSums]
  int rows;
  int hidden;
};

// Eight channels of a row: pairs of BF16.
struct MhcRow {
  uint32_t streams[kMhcStreams][4];
  uint32_t y[4];
};

__device__ inline void set_words(uint32_t (&words)[4], const uint4& bits) {
  words[0] = bits.x, words[1] = bits.y, words[2] = bits.z, words[3] = bits.w;
}

// The row's coefficients.
struct MhcWeighing {
  float4 pre, post, mix[kMhcStreams];
};

// Updates the row's streams in registers and returns the sum of their squares; `collapsed`: their sum by pre.
template <bool kUpdate, bool kCollapse>
__device__ inline float pass_row(MhcRow& row, uint32_t (&collapsed)[4], const MhcWeighing& w) {
  const float pre[4] = {w.pre.x, w.pre.y, w.pre.z, w.pre.w};
  const float post[4] = {w.post.x, w.post.y, w.post.z, w.post.w};
  float squares = 0;
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    float v[kMhcStreams][2];
#pragma unroll
    for (int s = 0; s < kMhcStreams; ++s) {
      v[s][0] = low_bf16(row.streams[s][word]), v[s][1] = high_bf16(row.streams[s][word]);
    }
    if (kUpdate) {
      const float y[2] = {low_bf16(row.y[word]), high_bf16(row.y[word])};
      float out[kMhcStreams][2];
#pragma unroll
      for (int j = 0; j < kMhcStreams; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          out[j][i] = __fmul_rn(post[j], y[i]);
#pragma unroll
          for (int s = 0; s < kMhcStreams; ++s) out[j][i] = fmaf((&w.mix[s].x)[j], v[s][i], out[j][i]);
        }
      }
#pragma unroll
      for (int j = 0; j < kMhcStreams; ++j) {
        row.streams[j][word] = pack_bf16(out[j][0], out[j][1]);
        v[j][0] = low_bf16(row.streams[j][word]), v[j][1] = high_bf16(row.streams[j][word]);
      }
    }
    float sum[2] = {0, 0};
#pragma unroll
    for (int s = 0; s < kMhcStreams; ++s) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (kCollapse) sum[i] = fmaf(pre[s], v[s][i], sum[i]);
        squares = fmaf(v[s][i], v[s][i], squares);
      }
    }
    if (kCollapse) collapsed[word] = pack_bf16(sum[0], sum[1]);
  }
  return squares;
}

// Stores what pass_row changed and made.
template <bool kUpdate, bool kCollapse>
__device__ inline void store_row(const MhcStreamsParams& p, int64_t row, int channel, const MhcRow& values,
                                 const uint32_t (&collapsed)[4]) {
  if (kUpdate) {
    Bf16* place = p.streams + row * p.streams_stride + channel;
#pragma unroll
    for (int s = 0; s < kMhcStreams; ++s) {
      const uint32_t(&v)[4] = values.streams[s];
      *reinterpret_cast<uint4*>(place + s * p.hidden) = {v[0], v[1], v[2], v[3]};
    }
  }
  if (kCollapse) {
    *reinterpret_cast<uint4*>(p.collapsed + row * p.collapsed_stride + channel) = {collapsed[0], collapsed[1],
                                                                                   collapsed[2], collapsed[3]};
  }
}

// Weights of one output and stream as operands: a lane holds eight neighbouring channels; the first four are its part
// of one product's operand, the last four of the next one's. The streams' values are dealt to lanes likewise.
// parts[0] is the largest.
__device__ inline void split_weights(float (&w)[8], uint4 (&parts)[kMhcSplits]) {
#pragma unroll
  for (int split = 0; split < kMhcSplits; ++split) {
    parts[split] = pack8(w);
    float taken[8];
    unpack8(parts[split], taken);
#pragma unroll
    for (int i = 0; i < 8; ++i) w[i] -= taken[i];
  }
}

// sums[column tile][half of the channels]: of 16 rows by 8 outputs, as the tensor cores deal them to lanes.
using MhcProducts = float[kMhcColumnTiles][2][4];

__device__ inline void multiply_tile(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                     uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Adds the products with one part of one column tile's weights. The order of calls is part of the result: streams in
// order, of each the smallest part first.
__device__ inline void multiply_part(float (&sums)[2][4], const uint32_t (&a)[4], const uint32_t (&b)[4],
                                     const uint4& w) {
  multiply_tile(sums[0], a[0], b[0], a[1], b[1], w.x, w.y);
  multiply_tile(sums[1], a[2], b[2], a[3], b[3], w.z, w.w);
}

// The lane's results into the rows' sums: squares[i] and the products belong to rows lane / 4 and lane / 4 + 8 of the
// warp's, whose sums begin at `rows`.
__device__ inline void store_sums(float (*rows)[kMhcSums], const MhcProducts& products, float (&squares)[2]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    squares[i] += __shfl_xor_sync(0xFFFFFFFFu, squares[i], 1);
    squares[i] += __shfl_xor_sync(0xFFFFFFFFu, squares[i], 2);
    float* row = rows[lane / 4 + 8 * i];
#pragma unroll
    for (int tile = 0; tile < kMhcColumnTiles; ++tile) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        row[tile * 8 + lane % 4 * 2 + j] = products[tile][0][2 * i + j] + products[tile][1][2 * i + j];
      }
    }
    if (lane % 4 == 0) row[kMhcOutputs] = squares[i];
  }
}

}  // namespace deepinfer::cuda
