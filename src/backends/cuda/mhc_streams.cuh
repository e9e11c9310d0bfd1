// The pass over the streams of mhc.cu for four BF16 streams: update, collapse and projection at once.
//
// The projection's input is BF16 and its fp32 weights are sums of three BF16 numbers (8 + 8 + 8 of 24 bits), so tensor
// cores multiply without loss and add in fp32. A block owns a slice of 128 channels, splits its weights once and then
// takes tiles of 32 rows. A row's sums are made from slices in order, a slice's from four spans of 32 channels in order,
// a span's by one warp: whatever the number of rows.
#pragma once

#include "backends/cuda/launch.cuh"
#include "backends/cuda/values.cuh"

namespace deepinfer::cuda {

inline constexpr int kMhcStreams = 4;
inline constexpr int kMhcOutputs = kMhcStreams * (kMhcStreams + 2);
inline constexpr int kMhcSums = kMhcOutputs + 1;  // and the sum of squares
inline constexpr int kMhcSlice = 128;             // channels
inline constexpr int kMhcSpans = kMhcSlice / 32;
inline constexpr int kMhcRows = 32;  // of a tile
inline constexpr int kMhcThreads = 256;
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

struct MhcShared {
  uint4 weights[kMhcSpans][kMhcStreams][kMhcColumnTiles][kMhcSplits][32];  // operands of the tensor cores, by lane
  float sums[2][kMhcSpans][kMhcRows][kMhcSums];
};

__device__ inline void multiply_tile(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                     uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The slice's weights as operands. A lane holds eight neighbouring channels of one output: the first four are its part
// of one product's operand, the last four of the next one's; the streams' values are dealt to lanes likewise.
__device__ inline void split_weights(MhcShared& shared, const MhcStreamsParams& p, int slice) {
  constexpr int kItems = kMhcSpans * kMhcStreams * kMhcColumnTiles * 32;
#pragma unroll 2
  for (int item = threadIdx.x; item < kItems; item += kMhcThreads) {
    const int lane = item % 32, tile = item / 32 % kMhcColumnTiles;
    const int s = item / (32 * kMhcColumnTiles) % kMhcStreams, span = item / (32 * kMhcColumnTiles * kMhcStreams);
    const int channel = slice * kMhcSlice + span * 32 + lane % 4 * kVec;
    float w[8] = {};
    if (channel < p.hidden) {
      load8(p.fn + (int64_t{tile * 8 + lane / 4} * kMhcStreams + s) * p.hidden + channel, w);
    }
#pragma unroll
    for (int split = 0; split < kMhcSplits; ++split) {
      const uint4 part = pack8(w);
      shared.weights[span][s][tile][split][lane] = part;
      float taken[8];
      unpack8(part, taken);
#pragma unroll
      for (int i = 0; i < 8; ++i) w[i] -= taken[i];
    }
  }
}

// One row's part of a lane: eight channels of every stream, updated and stored; their collapse stored; the sum of their
// squares returned.
template <bool kUpdate, bool kCollapse>
__device__ inline float pass_row(uint4 (&streams)[kMhcStreams], const MhcStreamsParams& p, int64_t row, int channel,
                                 bool store) {
  Bf16* place = p.streams + row * p.streams_stride + channel;
  uint4 y = {};
  if (channel < p.hidden) {
#pragma unroll
    for (int s = 0; s < kMhcStreams; ++s) streams[s] = *reinterpret_cast<const uint4*>(place + s * p.hidden);
    if (kUpdate) y = *reinterpret_cast<const uint4*>(p.y + row * p.y_stride + channel);
  } else {
#pragma unroll
    for (int s = 0; s < kMhcStreams; ++s) streams[s] = {};
  }
  float v[kMhcStreams][8];
#pragma unroll
  for (int s = 0; s < kMhcStreams; ++s) unpack8(streams[s], v[s]);
  if (kUpdate) {
    const float4 post4 = *reinterpret_cast<const float4*>(p.post + row * p.post_stride);
    const float post[4] = {post4.x, post4.y, post4.z, post4.w};
    float mix[kMhcStreams][4];
#pragma unroll
    for (int s = 0; s < kMhcStreams; ++s) {
      const float4 m = *reinterpret_cast<const float4*>(p.mix + row * p.mix_stride + 4 * s);
      mix[s][0] = m.x, mix[s][1] = m.y, mix[s][2] = m.z, mix[s][3] = m.w;
    }
    float ys[8];
    unpack8(y, ys);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float mixed[kMhcStreams];
#pragma unroll
      for (int j = 0; j < kMhcStreams; ++j) {
        mixed[j] = __fmul_rn(post[j], ys[i]);
#pragma unroll
        for (int s = 0; s < kMhcStreams; ++s) mixed[j] = fmaf(mix[s][j], v[s][i], mixed[j]);
      }
#pragma unroll
      for (int j = 0; j < kMhcStreams; ++j) v[j][i] = mixed[j];
    }
#pragma unroll
    for (int s = 0; s < kMhcStreams; ++s) {
      streams[s] = pack8(v[s]);
      unpack8(streams[s], v[s]);
      if (store && channel < p.hidden) *reinterpret_cast<uint4*>(place + s * p.hidden) = streams[s];
    }
  }
  if (kCollapse) {
    const float4 pre4 = *reinterpret_cast<const float4*>(p.pre + row * p.pre_stride);
    const float pre[4] = {pre4.x, pre4.y, pre4.z, pre4.w};
    float sum[8] = {};
#pragma unroll
    for (int s = 0; s < kMhcStreams; ++s) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] = fmaf(pre[s], v[s][i], sum[i]);
    }
    if (store && channel < p.hidden) store8(p.collapsed + row * p.collapsed_stride + channel, sum);
  }
  float squares = 0;
#pragma unroll
  for (int s = 0; s < kMhcStreams; ++s) {
#pragma unroll
    for (int i = 0; i < 8; ++i) squares = fmaf(v[s][i], v[s][i], squares);
  }
  return squares;
}

template <bool kUpdate, bool kCollapse, bool kProject>
__global__ void __launch_bounds__(kMhcThreads, 2) mhc_streams_kernel(const MhcStreamsParams p) {
  extern __shared__ __align__(16) uint8_t shared_bytes[];
  MhcShared& shared = *reinterpret_cast<MhcShared*>(shared_bytes);
  const int slice = blockIdx.x;
  // Weights are no kernel's output: they may be read while the kernel before still runs.
  if (kProject) split_weights(shared, p, slice);
  wait_for_kernel_before();
  if (kProject) __syncthreads();
  let_next_kernel_start();

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int span = warp % kMhcSpans, half = warp / kMhcSpans;
  const int channel = slice * kMhcSlice + span * 32 + lane % 4 * kVec;
  int buffer = 0;
  for (int first = blockIdx.y * kMhcRows; first < p.rows; first += gridDim.y * kMhcRows) {
    const int in_tile[2] = {half * 16 + lane / 4, half * 16 + lane / 4 + 8};
    uint4 streams[2][kMhcStreams];
    float squares[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = first + in_tile[i];
      squares[i] = pass_row<kUpdate, kCollapse>(streams[i], p, min(row, p.rows - 1), channel, row < p.rows);
    }
    if (!kProject) continue;
    float sums[kMhcColumnTiles][2][4] = {};
#pragma unroll
    for (int s = 0; s < kMhcStreams; ++s) {
#pragma unroll
      for (int split = kMhcSplits; split-- > 0;) {  // the smallest parts first
#pragma unroll
        for (int tile = 0; tile < kMhcColumnTiles; ++tile) {
          const uint4 w = shared.weights[span][s][tile][split][lane];
          multiply_tile(sums[tile][0], streams[0][s].x, streams[1][s].x, streams[0][s].y, streams[1][s].y, w.x, w.y);
          multiply_tile(sums[tile][1], streams[0][s].z, streams[1][s].z, streams[0][s].w, streams[1][s].w, w.z, w.w);
        }
      }
    }
    float(*mine)[kMhcSums] = shared.sums[buffer][span];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      squares[i] += __shfl_xor_sync(0xFFFFFFFFu, squares[i], 1);
      squares[i] += __shfl_xor_sync(0xFFFFFFFFu, squares[i], 2);
      float* row = mine[in_tile[i]];
#pragma unroll
      for (int tile = 0; tile < kMhcColumnTiles; ++tile) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          row[tile * 8 + lane % 4 * 2 + j] = sums[tile][0][2 * i + j] + sums[tile][1][2 * i + j];
        }
      }
      if (lane % 4 == 0) row[kMhcOutputs] = squares[i];
    }
    __syncthreads();
    const int valid = min(kMhcRows, p.rows - first) * kMhcSums;
    float* out = p.sums + (int64_t{slice} * p.rows + first) * kMhcSums;
    for (int i = threadIdx.x; i < valid; i += kMhcThreads) {
      float sum = 0;
#pragma unroll
      for (int s = 0; s < kMhcSpans; ++s) sum += (&shared.sums[buffer][s][0][0])[i];
      out[i] = sum;
    }
    buffer ^= 1;  // the other one is free: all have passed the barrier after reading it
  }
}

}  // namespace deepinfer::cuda
