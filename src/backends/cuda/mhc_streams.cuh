// The passes over the streams of mhc.cu for four BF16 streams: update, collapse and projection at once.
//
// A slice is 128 channels of every stream, a span 32 of them; a lane has eight neighbouring channels of a span, in two
// halves. A row's sums are made from slices in order, a slice's from its spans in order, a span's from both halves:
// whatever the number of rows and the kernel.
//
// Few rows: a block has 16 rows of a slice, a warp a span of them. It asks for everything at once, for its weights
// before the kernel before has ended. Many rows: a block splits the weights of its slice once, into shared memory. Each
// of its groups of four warps, one a span, goes from 16 rows to 16 rows, which arrive in shared memory while it works
// on those before.
#pragma once

#include "backends/cuda/launch.cuh"
#include "backends/cuda/mhc_row.cuh"

namespace deepinfer::cuda {

inline constexpr int kMhcSlice = 128;  // channels
inline constexpr int kMhcSpans = kMhcSlice / 32;
inline constexpr int kMhcGroups = 4;
inline constexpr int kMhcGroupThreads = 32 * kMhcSpans;
inline constexpr int kMhcManyThreads = kMhcGroups * kMhcGroupThreads;

// The sums of 16 rows of a slice: those of its spans, in order.
__device__ inline void write_sums(const MhcStreamsParams& p, int slice, int first,
                                  const float (&sums)[kMhcSpans][kMhcWarpRows][kMhcSums], int thread) {
  float* out = p.sums + (int64_t{slice} * p.rows + first) * kMhcSums;
  const int count = min(kMhcWarpRows, p.rows - first) * kMhcSums;
  for (int i = thread; i < count; i += kMhcGroupThreads) {
    float sum = 0;
#pragma unroll
    for (int s = 0; s < kMhcSpans; ++s) sum += (&sums[s][0][0])[i];
    out[i] = sum;
  }
}

template <bool kUpdate, bool kCollapse, bool kProject>
__global__ void __launch_bounds__(kMhcGroupThreads) mhc_few_rows_kernel(const MhcStreamsParams p) {
  __shared__ MhcWeighing weighing[kMhcWarpRows];
  __shared__ float sums[kMhcSpans][kMhcWarpRows][kMhcSums];
  const int lane = threadIdx.x % 32, span = threadIdx.x / 32, slice = blockIdx.x;
  const int channel = slice * kMhcSlice + span * 32 + lane % 4 * kVec;
  const bool inside = channel < p.hidden;
  float4 weights[kMhcStreams][kMhcColumnTiles][2] = {};
  if (kProject && inside) {
#pragma unroll
    for (int s = 0; s < kMhcStreams; ++s) {
#pragma unroll
      for (int tile = 0; tile < kMhcColumnTiles; ++tile) {
        const float* place = p.fn + (int64_t{tile * 8 + lane / 4} * kMhcStreams + s) * p.hidden + channel;
        weights[s][tile][0] = reinterpret_cast<const float4*>(place)[0];
        weights[s][tile][1] = reinterpret_cast<const float4*>(place)[1];
      }
    }
  }
  wait_for_kernel_before();
  let_next_kernel_start();

  const int first = blockIdx.y * kMhcWarpRows;
  fetch_weighing<kUpdate, kCollapse>(weighing, p, first, threadIdx.x);
  MhcRow rows[2] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t row = first + lane / 4 + 8 * i;
    if (row >= p.rows || !inside) continue;
    const Bf16* place = p.streams + row * p.streams_stride + channel;
#pragma unroll
    for (int s = 0; s < kMhcStreams; ++s) rows[i].set(s, *reinterpret_cast<const uint4*>(place + s * p.hidden));
    if (kUpdate) rows[i].set_y(*reinterpret_cast<const uint4*>(p.y + row * p.y_stride + channel));
  }
  wait_for_fetches();
  __syncthreads();
  float squares[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (first + 8 * i >= p.rows) break;  // for all lanes
    squares[i] =
        pass_row<kUpdate, kCollapse>(rows[i], p, first + lane / 4 + 8 * i, channel, weighing[lane / 4 + 8 * i]);
  }
  if (!kProject) return;
  MhcProducts products[2] = {};
#pragma unroll
  for (int s = 0; s < kMhcStreams; ++s) {
    uint2 parts[kMhcColumnTiles][2][kMhcSplits];
#pragma unroll
    for (int tile = 0; tile < kMhcColumnTiles; ++tile) {
      split_weights(weights[s][tile][0], parts[tile][0]);
      split_weights(weights[s][tile][1], parts[tile][1]);
    }
#pragma unroll
    for (int split = kMhcSplits; split-- > 0;) {
#pragma unroll
      for (int tile = 0; tile < kMhcColumnTiles; ++tile) {
        multiply_rows(products, tile, rows, s, parts[tile][0][split], parts[tile][1][split]);
      }
    }
  }
  store_sums(sums[span], products, squares);
  __syncthreads();
  write_sums(p, slice, first, sums, threadIdx.x);
}

struct MhcShared {
  uint4 weights[kMhcSpans][kMhcStreams][kMhcColumnTiles][kMhcSplits][32];  // by lane: both halves' operands
  uint4 arriving[2][kMhcStreams + 1][kMhcManyThreads];  // by the thread's own: its two rows' streams and y
  MhcWeighing weighing[2][kMhcGroups][kMhcWarpRows];    // of these rows and the next
  float sums[kMhcGroups][kMhcSpans][kMhcWarpRows][kMhcSums];
};

__device__ inline void wait_for_group(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(kMhcGroupThreads) : "memory");
}

template <bool kUpdate>
__device__ inline void fetch_rows(MhcShared& shared, const MhcStreamsParams& p, int first, int channel) {
  const bool inside = channel < p.hidden;
  const int c = inside ? channel : 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t row = min(first + 8 * i, p.rows - 1);
#pragma unroll
    for (int s = 0; s < kMhcStreams; ++s) {
      fetch(&shared.arriving[i][s][threadIdx.x], p.streams + row * p.streams_stride + s * p.hidden + c, inside);
    }
    if (kUpdate) fetch(&shared.arriving[i][kMhcStreams][threadIdx.x], p.y + row * p.y_stride + c, inside);
  }
}

__device__ inline void split_slice(MhcShared& shared, const MhcStreamsParams& p, int slice) {
  constexpr int kItems = kMhcSpans * kMhcStreams * kMhcColumnTiles * 32;
  for (int item = threadIdx.x; item < kItems; item += kMhcManyThreads) {
    const int lane = item % 32, tile = item / 32 % kMhcColumnTiles, s = item / (32 * kMhcColumnTiles) % kMhcStreams;
    const int span = item / (32 * kMhcColumnTiles * kMhcStreams);
    const int channel = slice * kMhcSlice + span * 32 + lane % 4 * kVec;
    const float* place = p.fn + (int64_t{tile * 8 + lane / 4} * kMhcStreams + s) * p.hidden + channel;
    const float4* whole = reinterpret_cast<const float4*>(place);
    uint2 parts[2][kMhcSplits] = {};
    if (channel < p.hidden) split_weights(whole[0], parts[0]), split_weights(whole[1], parts[1]);
#pragma unroll
    for (int split = 0; split < kMhcSplits; ++split) {
      shared.weights[span][s][tile][split][lane] = {parts[0][split].x, parts[0][split].y, parts[1][split].x,
                                                    parts[1][split].y};
    }
  }
}

template <bool kUpdate, bool kCollapse>
__global__ void __launch_bounds__(kMhcManyThreads, 1) mhc_many_rows_kernel(const MhcStreamsParams p) {
  extern __shared__ __align__(16) uint8_t shared_bytes[];
  MhcShared& shared = *reinterpret_cast<MhcShared*>(shared_bytes);
  const int lane = threadIdx.x % 32, span = threadIdx.x / 32 % kMhcSpans, slice = blockIdx.x;
  const int group = threadIdx.x / kMhcGroupThreads, in_group = threadIdx.x % kMhcGroupThreads;
  const int channel = slice * kMhcSlice + span * 32 + lane % 4 * kVec;
  split_slice(shared, p, slice);
  wait_for_kernel_before();
  let_next_kernel_start();
  __syncthreads();

  const int step = gridDim.y * kMhcGroups * kMhcWarpRows;
  int first = (group * gridDim.y + blockIdx.y) * kMhcWarpRows, buffer = 0;
  fetch_weighing<kUpdate, kCollapse>(shared.weighing[0][group], p, first, in_group);
  fetch_rows<kUpdate>(shared, p, first + lane / 4, channel);
  for (; first < p.rows; first += step, buffer ^= 1) {
    wait_for_fetches();
    wait_for_group(group);
    MhcRow rows[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int s = 0; s < kMhcStreams; ++s) rows[i].set(s, shared.arriving[i][s][threadIdx.x]);
      if (kUpdate) rows[i].set_y(shared.arriving[i][kMhcStreams][threadIdx.x]);
    }
    if (first + step < p.rows) {
      fetch_weighing<kUpdate, kCollapse>(shared.weighing[buffer ^ 1][group], p, first + step, in_group);
      fetch_rows<kUpdate>(shared, p, first + step + lane / 4, channel);
    }
    float squares[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      squares[i] = pass_row<kUpdate, kCollapse>(rows[i], p, first + lane / 4 + 8 * i, channel,
                                                shared.weighing[buffer][group][lane / 4 + 8 * i]);
    }
    MhcProducts products[2] = {};
#pragma unroll
    for (int s = 0; s < kMhcStreams; ++s) {
#pragma unroll
      for (int split = kMhcSplits; split-- > 0;) {
#pragma unroll
        for (int tile = 0; tile < kMhcColumnTiles; ++tile) {
          const uint4 w = shared.weights[span][s][tile][split][lane];
          multiply_rows(products, tile, rows, s, {w.x, w.y}, {w.z, w.w});
        }
      }
    }
    // The sums of the rows before have been read: all have come past the barrier above since.
    store_sums(shared.sums[group][span], products, squares);
    wait_for_group(group);
    write_sums(p, slice, first, shared.sums[group], in_group);
  }
}

}  // namespace deepinfer::cuda
