// What mhc_streams.cuh does with some channels of a row's four BF16 streams, in one lane: update, collapse, sum of
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
inline constexpr int kMhcWarpRows = 16;

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

// The coefficients of a row.
struct MhcWeighing {
  float4 pre, post, mix[kMhcStreams];
};

// Updates two neighbouring channels of the streams, adds their squares to `squares` and returns their sum by pre.
template <bool kUpdate, bool kCollapse>
__device__ inline uint32_t pass_pair(uint32_t (&streams)[kMhcStreams], uint32_t y, const MhcWeighing& w,
                                     float& squares) {
  const float pre[4] = {w.pre.x, w.pre.y, w.pre.z, w.pre.w};
  const float post[4] = {w.post.x, w.post.y, w.post.z, w.post.w};
  float v[kMhcStreams][2];
#pragma unroll
  for (int s = 0; s < kMhcStreams; ++s) v[s][0] = low_bf16(streams[s]), v[s][1] = high_bf16(streams[s]);
  if (kUpdate) {
    const float ys[2] = {low_bf16(y), high_bf16(y)};
    float out[kMhcStreams][2];
#pragma unroll
    for (int j = 0; j < kMhcStreams; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        out[j][i] = __fmul_rn(post[j], ys[i]);
#pragma unroll
        for (int s = 0; s < kMhcStreams; ++s) out[j][i] = fmaf((&w.mix[s].x)[j], v[s][i], out[j][i]);
      }
    }
#pragma unroll
    for (int j = 0; j < kMhcStreams; ++j) {
      streams[j] = pack_bf16(out[j][0], out[j][1]);
      v[j][0] = low_bf16(streams[j]), v[j][1] = high_bf16(streams[j]);
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
  return kCollapse ? pack_bf16(sum[0], sum[1]) : 0;
}

// Eight channels of a row, as pairs: two of each half.
struct MhcRow {
  uint32_t pairs[4][kMhcStreams];
  uint32_t y[4];

  __device__ void set(int s, const uint4& v) {
    pairs[0][s] = v.x, pairs[1][s] = v.y, pairs[2][s] = v.z, pairs[3][s] = v.w;
  }
  __device__ void set_y(const uint4& v) { y[0] = v.x, y[1] = v.y, y[2] = v.z, y[3] = v.w; }
};

// The sum over the four lanes that share a row.
__device__ inline float sum_row_lanes(float x) {
  x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
  return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}

// Updates the lane's channels of the row, stores them and their collapse, and returns the span's sum of squares.
template <bool kUpdate, bool kCollapse>
__device__ inline float pass_row(MhcRow& values, const MhcStreamsParams& p, int64_t row, int channel,
                                 const MhcWeighing& w) {
  uint32_t collapsed[4];
  float squares = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) collapsed[k] = pass_pair<kUpdate, kCollapse>(values.pairs[k], values.y[k], w, squares);
  if (row < p.rows && channel < p.hidden) {
    if (kUpdate) {
      Bf16* place = p.streams + row * p.streams_stride + channel;
#pragma unroll
      for (int s = 0; s < kMhcStreams; ++s) {
        *reinterpret_cast<uint4*>(place + s * p.hidden) = {values.pairs[0][s], values.pairs[1][s], values.pairs[2][s],
                                                           values.pairs[3][s]};
      }
    }
    if (kCollapse) {
      *reinterpret_cast<uint4*>(p.collapsed + row * p.collapsed_stride + channel) = {collapsed[0], collapsed[1],
                                                                                     collapsed[2], collapsed[3]};
    }
  }
  return sum_row_lanes(squares);
}

// One split of a weight pair: what it takes, which leaves the rest.
__device__ inline uint32_t split_pair(float& low, float& high) {
  const uint32_t part = pack_bf16(low, high);
  low -= low_bf16(part), high -= high_bf16(part);
  return part;
}

// Four neighbouring channels of one output and stream are a lane's part of one product's operand; the streams' values
// are dealt to lanes likewise. parts[0] is the largest.
__device__ inline void split_weights(float4 w, uint2 (&parts)[kMhcSplits]) {
#pragma unroll
  for (int split = 0; split < kMhcSplits; ++split) {
    parts[split].x = split_pair(w.x, w.y);
    parts[split].y = split_pair(w.z, w.w);
  }
}

// Of 16 rows by all outputs, as the tensor cores deal them to lanes: rows lane / 4 and lane / 4 + 8 of the warp's. The
// order of calls is part of the result: streams in order, of each the smallest part first.
using MhcProducts = float[kMhcColumnTiles][4];

__device__ inline void multiply_tile(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                     const uint2& w) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(w.x), "r"(w.y));
}

// Both halves of the channels of two rows a lane by one part of a column tile's weights.
__device__ inline void multiply_rows(MhcProducts (&products)[2], int tile, const MhcRow (&rows)[2], int s,
                                     const uint2& first, const uint2& second) {
  const auto &a = rows[0].pairs, &b = rows[1].pairs;
  multiply_tile(products[0][tile], a[0][s], b[0][s], a[1][s], b[1][s], first);
  multiply_tile(products[1][tile], a[2][s], b[2][s], a[3][s], b[3][s], second);
}

// The lane's results into the warp's rows of sums.
__device__ inline void store_sums(float (*rows)[kMhcSums], const MhcProducts (&products)[2],
                                  const float (&squares)[2]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float* row = rows[lane / 4 + 8 * i];
#pragma unroll
    for (int tile = 0; tile < kMhcColumnTiles; ++tile) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        row[tile * 8 + lane % 4 * 2 + j] = products[0][tile][2 * i + j] + products[1][tile][2 * i + j];
      }
    }
    if (lane % 4 == 0) row[kMhcOutputs] = squares[i];
  }
}

// 16 bytes into shared memory, some time later; zeros if there is nothing to read.
__device__ inline void fetch(void* shared, const void* from, bool present) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = present ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ inline void wait_for_fetches() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Part `thread` of fetching the coefficients of 16 rows.
template <bool kUpdate, bool kCollapse>
__device__ inline void fetch_weighing(MhcWeighing (&to)[kMhcWarpRows], const MhcStreamsParams& p, int first,
                                      int thread) {
  const int i = thread / kMhcWarpRows, r = thread % kMhcWarpRows;  // a float4 of a row
  const int64_t row = min(first + r, p.rows - 1);
  if (kCollapse && i == 0) fetch(&to[r].pre, p.pre + row * p.pre_stride, true);
  if (kUpdate && i == 1) fetch(&to[r].post, p.post + row * p.post_stride, true);
  if (kUpdate && i >= 2 && i < 2 + kMhcStreams) {
    fetch(&to[r].mix[i - 2], p.mix + row * p.mix_stride + 4 * (i - 2), true);
  }
}

}  // namespace deepinfer::cuda
