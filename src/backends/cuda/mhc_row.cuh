// What mhc_streams.cuh does with some channels of a row's four BF16 streams, in one lane: update, collapse, sums of
// squares; and the projection of 8 rows by a warp.
//
// The projection's input is BF16 and its fp32 weights are sums of three BF16 numbers (8 + 8 + 8 of 24 bits), so tensor
// cores multiply without loss and add in fp32.
#pragma once

#include "backends/cuda/values.cuh"

namespace deepinfer::cuda {

inline constexpr int kMhcStreams = 4;
inline constexpr int kMhcOutputs = kMhcStreams * (kMhcStreams + 2);
inline constexpr int kMhcPitch = 28;              // places that the sums of a row take
inline constexpr int kMhcSplits = 3;
inline constexpr int kMhcTiles = 5;      // of 16 rows that hold the weights' parts
inline constexpr int kMhcGroupRows = 8;  // that a warp multiplies at once
inline constexpr int kMhcSpan = 32;      // channels that a warp has
inline constexpr int kMhcSliceSpans = 4;
inline constexpr int kMhcSlice = kMhcSliceSpans * kMhcSpan;  // channels that are summed before a row's slices are

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
  float* sums;      // [rows, slices, kMhcPitch]
  float* squares;   // of the collapsed row, [rows, slices]
  int rows;
  int hidden;
};

// Reads a kernel's parameters before it waits: the first to read them waits for a cache, 0.2 us.
template <typename Params>
__device__ inline void touch(const Params& params) {
  const auto* words = reinterpret_cast<const int*>(&params);
#pragma unroll
  for (size_t i = 0; i < sizeof(Params) / sizeof(int); i += 16) asm volatile("" ::"r"(words[i]));
}

// The coefficients of a row.
struct MhcWeighing {
  float4 pre, post, mix[kMhcStreams];
};

// Sums of squares of some channels: of all streams, and of the collapsed row as it is stored.
struct MhcSquares {
  float streams = 0, collapsed = 0;
};

// Updates two neighbouring channels of the streams, adds to the squares and returns their sum by pre; kSquare: its
// squares are wanted.
template <bool kUpdate, bool kCollapse, bool kSquare>
__device__ inline uint32_t pass_pair(uint32_t (&streams)[kMhcStreams], uint32_t y, const MhcWeighing& w,
                                     MhcSquares& squares) {
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
      squares.streams = fmaf(v[s][i], v[s][i], squares.streams);
    }
  }
  if (!kCollapse) return 0;
  const uint32_t collapsed = pack_bf16(sum[0], sum[1]);
  if (!kSquare) return collapsed;
  squares.collapsed = fmaf(low_bf16(collapsed), low_bf16(collapsed), squares.collapsed);
  squares.collapsed = fmaf(high_bf16(collapsed), high_bf16(collapsed), squares.collapsed);
  return collapsed;
}

// Eight neighbouring channels of a row, as pairs: two of each half.
struct MhcUnit {
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

// Updates the lane's channels of the row, stores them and their collapse, and returns the span's sums of squares.
template <bool kUpdate, bool kCollapse, bool kSquare>
__device__ inline MhcSquares pass_unit(MhcUnit& unit, const MhcStreamsParams& p, int64_t row, int channel,
                                       const MhcWeighing& w) {
  MhcSquares squares;
  uint32_t collapsed[4];
#pragma unroll
  for (int k = 0; k < 4; ++k)
    collapsed[k] = pass_pair<kUpdate, kCollapse, kSquare>(unit.pairs[k], unit.y[k], w, squares);
  if (row < p.rows && channel < p.hidden) {
    if (kUpdate) {
      Bf16* place = p.streams + row * p.streams_stride + channel;
#pragma unroll
      for (int s = 0; s < kMhcStreams; ++s) {
        *reinterpret_cast<uint4*>(place + s * p.hidden) = {unit.pairs[0][s], unit.pairs[1][s], unit.pairs[2][s],
                                                           unit.pairs[3][s]};
      }
    }
    if (kCollapse) {
      *reinterpret_cast<uint4*>(p.collapsed + row * p.collapsed_stride + channel) = {collapsed[0], collapsed[1],
                                                                                     collapsed[2], collapsed[3]};
    }
  }
  return {sum_row_lanes(squares.streams), kSquare ? sum_row_lanes(squares.collapsed) : 0.0f};
}

// One split of a weight pair: what it takes, which leaves the rest.
__device__ inline uint32_t split_pair(float& low, float& high) {
  const uint32_t part = pack_bf16(low, high);
  low -= low_bf16(part), high -= high_bf16(part);
  return part;
}

// Half a span's weights of one stream, as the tensor cores take them: 72 rows, which are the three parts of 24 outputs,
// largest first, in tiles of 16; the last half tile is empty. A lane has rows lane / 4 and lane / 4 + 8 of every tile,
// so outputs lane / 4, lane / 4 + 8 and lane / 4 + 16 in all their parts, and four channels.
using MhcOperand = uint4[kMhcTiles];
using MhcWeights = float4[2][kMhcOutputs / 8];  // of both halves

__device__ inline void load_weights(MhcWeights& w, const MhcStreamsParams& p, int s, int channel) {
#pragma unroll
  for (int o = 0; o < kMhcOutputs / 8; ++o) {
    const int64_t row = int64_t{o * 8 + static_cast<int>(threadIdx.x) % 32 / 4} * kMhcStreams + s;
    const auto* place = reinterpret_cast<const float4*>(p.fn + row * p.hidden + channel);
    w[0][o] = place[0], w[1][o] = place[1];
  }
}

__device__ inline void split_weights(MhcOperand& operand, const float4 (&w)[kMhcOutputs / 8]) {
  uint2 parts[2 * kMhcTiles] = {};
#pragma unroll
  for (int o = 0; o < kMhcOutputs / 8; ++o) {
    float4 rest = w[o];
#pragma unroll
    for (int split = 0; split < kMhcSplits; ++split) {
      uint2& part = parts[split * (kMhcOutputs / 8) + o];
      part.x = split_pair(rest.x, rest.y);
      part.y = split_pair(rest.z, rest.w);
    }
  }
#pragma unroll
  for (int t = 0; t < kMhcTiles; ++t) {
    operand[t] = {parts[2 * t].x, parts[2 * t + 1].x, parts[2 * t].y, parts[2 * t + 1].y};
  }
}

// Of 8 rows by the 72 parts, as the tensor cores deal them to lanes: [tile][weights' row lane / 4 or 8 more, streams'
// row lane % 4 * 2 or 1 more]. The order of calls is part of the result: streams in order, of each the first half
// first.
using MhcProducts = float[kMhcTiles][4];

// Half the lane's channels of row lane / 4 by a tile of a stream's weights.
__device__ inline void multiply_unit(MhcProducts& products, const MhcUnit& unit, int s, int half, int t,
                                     const uint4& w) {
  float(&sum)[4] = products[t];
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w), "r"(unit.pairs[2 * half][s]), "r"(unit.pairs[2 * half + 1][s]));
}

// What a span gives to the sums of 8 rows: the projections and the streams' squares, kPitch places a row; the collapsed
// squares.
template <int kPitch>
struct MhcSpanSums {
  float of_streams[kMhcGroupRows][kPitch];
  float of_collapsed[kMhcGroupRows];
};

// The lane's results; an output's parts are added, smallest first.
template <bool kSquare, bool kProject, int kPitch>
__device__ inline void store_sums(MhcSpanSums<kPitch>& sums, const MhcProducts& products, const MhcSquares& squares) {
  const int lane = threadIdx.x % 32;
  if (lane % 4 == 0) {
    sums.of_streams[lane / 4][kMhcOutputs] = squares.streams;
    if (kSquare) sums.of_collapsed[lane / 4] = squares.collapsed;
  }
  if (!kProject) return;
  const auto part = [&](int block, int i) { return products[block / 2][block % 2 * 2 + i]; };
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int o = 0; o < kMhcOutputs / 8; ++o) {
      sums.of_streams[lane % 4 * 2 + i][o * 8 + lane / 4] = part(6 + o, i) + part(3 + o, i) + part(o, i);
    }
  }
}

// The sums of 8 rows from `first` on by one slice, from those of its spans in order.
template <bool kSquare, bool kProject, int kPitch>
__device__ inline void write_sums(const MhcStreamsParams& p, int slice, int first,
                                  const MhcSpanSums<kPitch> (&spans)[kMhcSliceSpans], int thread, int threads) {
  const int rows = min(kMhcGroupRows, p.rows - first);
  if (kProject) {
    float* out = p.sums + (int64_t{first} * gridDim.x + slice) * kPitch;
#pragma unroll 1
    for (int i = thread; i < rows * kPitch; i += threads) {
      float sum = (&spans[0].of_streams[0][0])[i];
#pragma unroll
      for (int s = 1; s < kMhcSliceSpans; ++s) sum += (&spans[s].of_streams[0][0])[i];
      out[i / kPitch * gridDim.x * kPitch + i % kPitch] = sum;
    }
  }
  const int r = threads - 1 - thread;  // by threads that have the fewest of the others
  if (kSquare && r < rows) {
    float sum = spans[0].of_collapsed[r];
#pragma unroll
    for (int s = 1; s < kMhcSliceSpans; ++s) sum += spans[s].of_collapsed[r];
    p.squares[int64_t{first + r} * gridDim.x + slice] = sum;
  }
}

// 16 bytes into shared memory, some time later; zeros if there is nothing to read.
__device__ inline void fetch(void* shared, const void* from, bool present) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = present ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ inline void wait_for_fetches() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Part `thread` of fetching the coefficients of a group's rows; it takes 48 threads.
template <bool kUpdate, bool kCollapse>
__device__ inline void fetch_weighing(MhcWeighing (&to)[kMhcGroupRows], const MhcStreamsParams& p, int first,
                                      int thread) {
  const int i = thread / kMhcGroupRows, r = thread % kMhcGroupRows;  // a float4 of a row
  const int64_t row = min(first + r, p.rows - 1);
  if (kCollapse && i == 0) fetch(&to[r].pre, p.pre + row * p.pre_stride, true);
  if (kUpdate && i == 1) fetch(&to[r].post, p.post + row * p.post_stride, true);
  if (kUpdate && i >= 2 && i < 2 + kMhcStreams) {
    fetch(&to[r].mix[i - 2], p.mix + row * p.mix_stride + 4 * (i - 2), true);
  }
}

}  // namespace deepinfer::cuda
