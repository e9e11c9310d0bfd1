// The pass over the streams of mhc.cu for four BF16 streams: update, collapse and projection at once. A block owns a
// slice of 128 channels; a warp has 32 of them (a span) and 16 rows. A row's sums are made from slices in order, a
// slice's from its spans in order, a span's by one warp: whatever the number of rows and the kernel.
//
// Few rows: every block has 16 rows and asks for everything at once, its weights before the kernel before has ended.
// Many rows: a block splits its weights once, keeps them in shared memory and goes from tile to tile of 64 rows, whose
// values arrive in shared memory while it works on the tile before.
#pragma once

#include "backends/cuda/launch.cuh"
#include "backends/cuda/mhc_row.cuh"

namespace deepinfer::cuda {

inline constexpr int kMhcSlice = 128;  // channels
inline constexpr int kMhcSpans = kMhcSlice / 32;
inline constexpr int kMhcWarpRows = 16;
inline constexpr int kMhcFewThreads = 32 * kMhcSpans;
inline constexpr int kMhcManyRows = 64;
inline constexpr int kMhcManyThreads = kMhcFewThreads * kMhcManyRows / kMhcWarpRows;

// The spans' sums of `rows` rows, added and written.
template <int kThreads, int kRows>
__device__ inline void write_sums(float* out, const float (&sums)[kMhcSpans][kRows][kMhcSums], int rows) {
  for (int i = threadIdx.x; i < min(rows, kRows) * kMhcSums; i += kThreads) {
    float sum = 0;
#pragma unroll
    for (int s = 0; s < kMhcSpans; ++s) sum += (&sums[s][0][0])[i];
    out[i] = sum;
  }
}

template <bool kUpdate, bool kCollapse, bool kProject>
__global__ void __launch_bounds__(kMhcFewThreads) mhc_few_rows_kernel(const MhcStreamsParams p) {
  __shared__ float sums[kMhcSpans][kMhcWarpRows][kMhcSums];
  const int lane = threadIdx.x % 32, span = threadIdx.x / 32, slice = blockIdx.x;
  const int channel = slice * kMhcSlice + span * 32 + lane % 4 * kVec;
  const bool inside = channel < p.hidden;
  float weights[kMhcStreams][kMhcColumnTiles][8] = {};
  if (kProject && inside) {
#pragma unroll
    for (int s = 0; s < kMhcStreams; ++s) {
#pragma unroll
      for (int tile = 0; tile < kMhcColumnTiles; ++tile) {
        load8(p.fn + (int64_t{tile * 8 + lane / 4} * kMhcStreams + s) * p.hidden + channel, weights[s][tile]);
      }
    }
  }
  wait_for_kernel_before();
  let_next_kernel_start();

  const int first = blockIdx.y * kMhcWarpRows;
  MhcRow values[2] = {};
  MhcWeighing weighing[2] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t row = min(first + lane / 4 + 8 * i, p.rows - 1);
    if (kCollapse) weighing[i].pre = *reinterpret_cast<const float4*>(p.pre + row * p.pre_stride);
    if (kUpdate) {
      weighing[i].post = *reinterpret_cast<const float4*>(p.post + row * p.post_stride);
#pragma unroll
      for (int s = 0; s < kMhcStreams; ++s) {
        weighing[i].mix[s] = *reinterpret_cast<const float4*>(p.mix + row * p.mix_stride + 4 * s);
      }
    }
    if (!inside) continue;
    const Bf16* place = p.streams + row * p.streams_stride + channel;
#pragma unroll
    for (int s = 0; s < kMhcStreams; ++s) {
      set_words(values[i].streams[s], *reinterpret_cast<const uint4*>(place + s * p.hidden));
    }
    if (kUpdate) set_words(values[i].y, *reinterpret_cast<const uint4*>(p.y + row * p.y_stride + channel));
  }
  float squares[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = first + lane / 4 + 8 * i;
    uint32_t collapsed[4];
    squares[i] = pass_row<kUpdate, kCollapse>(values[i], collapsed, weighing[i]);
    if (inside && row < p.rows) store_row<kUpdate, kCollapse>(p, row, channel, values[i], collapsed);
  }
  if (!kProject) return;
  MhcProducts products = {};
#pragma unroll
  for (int s = 0; s < kMhcStreams; ++s) {
    uint4 parts[kMhcColumnTiles][kMhcSplits];
#pragma unroll
    for (int tile = 0; tile < kMhcColumnTiles; ++tile) split_weights(weights[s][tile], parts[tile]);
#pragma unroll
    for (int split = kMhcSplits; split-- > 0;) {
#pragma unroll
      for (int tile = 0; tile < kMhcColumnTiles; ++tile) {
        multiply_part(products[tile], values[0].streams[s], values[1].streams[s], parts[tile][split]);
      }
    }
  }
  store_sums(sums[span], products, squares);
  __syncthreads();
  write_sums<kMhcFewThreads>(p.sums + (int64_t{slice} * p.rows + first) * kMhcSums, sums, p.rows - first);
}

struct MhcShared {
  uint4 weights[kMhcSpans][kMhcStreams][kMhcColumnTiles][kMhcSplits][32];  // by lane
  uint4 arriving[2][kMhcStreams + 1][kMhcManyThreads];  // by the thread's own: its two rows' streams and y
  MhcWeighing weighing[2][kMhcManyRows];                // of this tile and the next
  float sums[kMhcSpans][kMhcManyRows][kMhcSums];
};

// 16 bytes into shared memory, some time later; zeros if there is nothing to read.
__device__ inline void fetch(void* shared, const void* from, bool present) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = present ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ inline void fetched() { asm volatile("cp.async.wait_all;" ::: "memory"); }

template <bool kUpdate, bool kCollapse>
__device__ inline void fetch_weighing(MhcWeighing (&to)[kMhcManyRows], const MhcStreamsParams& p, int first) {
  const int i = threadIdx.x / kMhcManyRows, r = threadIdx.x % kMhcManyRows;  // a float4 of a row
  const int64_t row = min(first + r, p.rows - 1);
  if (kCollapse && i == 0) fetch(&to[r].pre, p.pre + row * p.pre_stride, true);
  if (kUpdate && i == 1) fetch(&to[r].post, p.post + row * p.post_stride, true);
  if (kUpdate && i >= 2 && i < 2 + kMhcStreams) {
    fetch(&to[r].mix[i - 2], p.mix + row * p.mix_stride + 4 * (i - 2), true);
  }
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

template <bool kUpdate, bool kCollapse>
__global__ void __launch_bounds__(kMhcManyThreads, 1) mhc_many_rows_kernel(const MhcStreamsParams p) {
  extern __shared__ __align__(16) uint8_t shared_bytes[];
  MhcShared& shared = *reinterpret_cast<MhcShared*>(shared_bytes);
  const int lane = threadIdx.x % 32, span = threadIdx.x / 32 % kMhcSpans, slice = blockIdx.x;
  const int channel = slice * kMhcSlice + span * 32 + lane % 4 * kVec;
  const int in_tile = threadIdx.x / (32 * kMhcSpans) * kMhcWarpRows;  // the warp's first row

  constexpr int kItems = kMhcSpans * kMhcStreams * kMhcColumnTiles * 32;
  for (int item = threadIdx.x; item < kItems; item += kMhcManyThreads) {
    const int tile = item / 32 % kMhcColumnTiles, s = item / (32 * kMhcColumnTiles) % kMhcStreams;
    const int of_span = item / (32 * kMhcColumnTiles * kMhcStreams);
    const int c = slice * kMhcSlice + of_span * 32 + lane % 4 * kVec;
    float w[8] = {};
    uint4 parts[kMhcSplits];
    if (c < p.hidden) load8(p.fn + (int64_t{tile * 8 + lane / 4} * kMhcStreams + s) * p.hidden + c, w);
    split_weights(w, parts);
#pragma unroll
    for (int split = 0; split < kMhcSplits; ++split) shared.weights[of_span][s][tile][split][lane] = parts[split];
  }
  wait_for_kernel_before();
  let_next_kernel_start();

  const int step = gridDim.y * kMhcManyRows;
  int first = blockIdx.y * kMhcManyRows, buffer = 0;
  fetch_weighing<kUpdate, kCollapse>(shared.weighing[0], p, first);
  fetch_rows<kUpdate>(shared, p, first + in_tile + lane / 4, channel);
  fetched();
  __syncthreads();
  for (; first < p.rows; first += step, buffer ^= 1) {
    MhcRow values[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int s = 0; s < kMhcStreams; ++s) set_words(values[i].streams[s], shared.arriving[i][s][threadIdx.x]);
      if (kUpdate) set_words(values[i].y, shared.arriving[i][kMhcStreams][threadIdx.x]);
    }
    if (first + step < p.rows) {
      fetch_weighing<kUpdate, kCollapse>(shared.weighing[buffer ^ 1], p, first + step);
      fetch_rows<kUpdate>(shared, p, first + step + in_tile + lane / 4, channel);
    }
    float squares[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = in_tile + lane / 4 + 8 * i;
      uint32_t collapsed[4];
      squares[i] = pass_row<kUpdate, kCollapse>(values[i], collapsed, shared.weighing[buffer][r]);
      if (channel < p.hidden && first + r < p.rows) {
        store_row<kUpdate, kCollapse>(p, first + r, channel, values[i], collapsed);
      }
    }
    MhcProducts products = {};
#pragma unroll
    for (int s = 0; s < kMhcStreams; ++s) {
#pragma unroll
      for (int split = kMhcSplits; split-- > 0;) {
#pragma unroll
        for (int tile = 0; tile < kMhcColumnTiles; ++tile) {
          multiply_part(products[tile], values[0].streams[s], values[1].streams[s],
                        shared.weights[span][s][tile][split][lane]);
        }
      }
    }
    store_sums(shared.sums[span] + in_tile, products, squares);
    __syncthreads();
    write_sums<kMhcManyThreads>(p.sums + (int64_t{slice} * p.rows + first) * kMhcSums, shared.sums, p.rows - first);
    fetched();
    __syncthreads();
  }
}

}  // namespace deepinfer::cuda
