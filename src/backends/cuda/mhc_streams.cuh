// The passes over the streams of mhc.cu for four BF16 streams: update, collapse and projection at once.
//
// A slice is 128 channels of every stream, a span 32 of them; a lane has eight neighbouring channels of a span, in two
// halves. A row's sums are made from slices in order, a slice's from its spans in order: whatever the number of rows
// and the kernel. The squares of the collapsed row are summed alike, of many rows by the kernel after.
//
// Few rows: a block has some rows of a slice, one or two teams of four warps that take eight rows in turn, a warp a
// span of them. It asks for its weights, and splits them, before the kernel before has ended, and then for all its rows
// at once. Many rows: a block splits the weights of its slice once, into shared memory. Each of its teams goes from 16
// rows to 16 rows, which arrive in shared memory while it works on those before.
#pragma once

#include "backends/cuda/launch.cuh"
#include "backends/cuda/mhc_row.cuh"

namespace deepinfer::cuda {

inline constexpr int kMhcTeamThreads = 32 * kMhcSliceSpans;
inline constexpr int kMhcFewTeams = 2, kMhcFewGroups = 3;  // most of a block
inline constexpr int kMhcTeams = 4;
inline constexpr int kMhcTeamRows = 2 * kMhcGroupRows;
inline constexpr int kMhcManyThreads = kMhcTeams * kMhcTeamThreads;

template <bool kUpdate>
__device__ inline void fetch_unit(uint4 (&to)[kMhcStreams + 1][kMhcTeamThreads], int thread, const MhcStreamsParams& p,
                                  int row, int channel) {
  const bool present = row < p.rows && channel < p.hidden;
  const int64_t r = present ? row : 0, c = present ? channel : 0;
#pragma unroll
  for (int s = 0; s < kMhcStreams; ++s) {
    fetch(&to[s][thread], p.streams + r * p.streams_stride + s * p.hidden + c, present);
  }
  if (kUpdate) fetch(&to[kMhcStreams][thread], p.y + r * p.y_stride + c, present);
}

template <bool kUpdate>
__device__ inline void take_unit(MhcUnit& unit, const uint4 (&from)[kMhcStreams + 1][kMhcTeamThreads], int thread) {
#pragma unroll
  for (int s = 0; s < kMhcStreams; ++s) unit.set(s, from[s][thread]);
  if (kUpdate) unit.set_y(from[kMhcStreams][thread]);
}

struct MhcFewShared {
  uint4 arriving[kMhcFewGroups][kMhcStreams + 1][kMhcTeamThreads];
  MhcWeighing weighing[kMhcFewGroups][kMhcGroupRows];
  MhcSpanSums<kMhcSums> sums[kMhcFewGroups][kMhcSliceSpans];
};

// A block has `groups` groups of eight rows.
template <bool kUpdate, bool kCollapse, bool kProject>
__global__ void __launch_bounds__(kMhcFewTeams* kMhcTeamThreads, 1)
    mhc_few_rows_kernel(const MhcStreamsParams p, int groups) {
  __shared__ MhcFewShared shared;
  const int lane = threadIdx.x % 32, team = threadIdx.x / kMhcTeamThreads, in_team = threadIdx.x % kMhcTeamThreads;
  const int span = in_team / 32, slice = blockIdx.x, teams = blockDim.x / kMhcTeamThreads;
  const int channel = slice * kMhcSlice + span * kMhcSpan + lane % 4 * kVec;
  const int first = blockIdx.y * groups * kMhcGroupRows;
  MhcOperand weights[kMhcStreams][2] = {};
  if (kProject && channel < p.hidden) {
    MhcWeights whole[kMhcStreams];
#pragma unroll
    for (int s = 0; s < kMhcStreams; ++s) load_weights(whole[s], p, s, channel);
#pragma unroll
    for (int s = 0; s < kMhcStreams; ++s) {
      split_weights(weights[s][0], whole[s][0]);
      split_weights(weights[s][1], whole[s][1]);
    }
  }
  wait_for_kernel_before();
  let_next_kernel_start();

  for (int g = team; g < groups; g += teams) {
    const int row = first + g * kMhcGroupRows;
    fetch_weighing<kUpdate, kCollapse>(shared.weighing[g], p, row, in_team);
    fetch_unit<kUpdate>(shared.arriving[g], in_team, p, row + lane / 4, channel);
  }
  wait_for_fetches();
  __syncthreads();
#pragma unroll 1
  for (int g = team; g < groups; g += teams) {
    const int row = first + g * kMhcGroupRows;
    if (row >= p.rows) break;
    MhcUnit unit;
    take_unit<kUpdate>(unit, shared.arriving[g], in_team);
    const MhcSquares squares =
        pass_unit<kUpdate, kCollapse, kCollapse>(unit, p, row + lane / 4, channel, shared.weighing[g][lane / 4]);
    MhcProducts products = {};
    if (kProject) {
#pragma unroll
      for (int s = 0; s < kMhcStreams; ++s) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int t = 0; t < kMhcTiles; ++t) multiply_unit(products, unit, s, half, t, weights[s][half][t]);
        }
      }
    }
    if (kCollapse || kProject) store_sums<kCollapse, kProject>(shared.sums[g][span], products, squares);
  }
  if constexpr (kCollapse || kProject) {
    __syncthreads();
#pragma unroll 1
    for (int g = 0; g < groups; ++g) {
      write_sums<kCollapse, kProject>(p, slice, first + g * kMhcGroupRows, shared.sums[g], threadIdx.x, blockDim.x);
    }
  }
}

struct MhcShared {
  uint4 weights[kMhcSliceSpans][kMhcStreams][2][kMhcTiles][32];  // by lane
  uint4 arriving[kMhcTeams][2][kMhcStreams + 1][kMhcTeamThreads];
  MhcWeighing weighing[2][kMhcTeams][2][kMhcGroupRows];  // of these rows and the next
  MhcSpanSums<kMhcPitch> sums[kMhcTeams][2][kMhcSliceSpans];
};

__device__ inline void wait_for_team(int team) {
  asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(kMhcTeamThreads) : "memory");
}

__device__ inline void split_slice(MhcShared& shared, const MhcStreamsParams& p, int slice) {
  const int lane = threadIdx.x % 32;
  for (int item = threadIdx.x / 32; item < kMhcSliceSpans * kMhcStreams; item += kMhcManyThreads / 32) {
    const int s = item % kMhcStreams, span = item / kMhcStreams;
    const int channel = slice * kMhcSlice + span * kMhcSpan + lane % 4 * kVec;
    MhcWeights whole = {};
    if (channel < p.hidden) load_weights(whole, p, s, channel);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      MhcOperand operand;
      split_weights(operand, whole[half]);
#pragma unroll
      for (int t = 0; t < kMhcTiles; ++t) shared.weights[span][s][half][t][lane] = operand[t];
    }
  }
}

template <bool kUpdate, bool kCollapse>
__device__ inline void fetch_rows(MhcShared& shared, int buffer, int team, const MhcStreamsParams& p, int first,
                                  int channel) {
  const int in_team = threadIdx.x % kMhcTeamThreads, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = first + kMhcGroupRows * i;
    if (in_team < 64) fetch_weighing<kUpdate, kCollapse>(shared.weighing[buffer][team][i], p, row, in_team);
    fetch_unit<kUpdate>(shared.arriving[team][i], in_team, p, row + lane / 4, channel);
  }
}

template <bool kUpdate, bool kCollapse>
__global__ void __launch_bounds__(kMhcManyThreads, 1) mhc_many_rows_kernel(const MhcStreamsParams p) {
  extern __shared__ __align__(16) uint8_t shared_bytes[];
  MhcShared& shared = *reinterpret_cast<MhcShared*>(shared_bytes);
  const int lane = threadIdx.x % 32, team = threadIdx.x / kMhcTeamThreads, in_team = threadIdx.x % kMhcTeamThreads;
  const int span = in_team / 32, slice = blockIdx.x;
  const int channel = slice * kMhcSlice + span * kMhcSpan + lane % 4 * kVec;
  split_slice(shared, p, slice);
  wait_for_kernel_before();
  let_next_kernel_start();
  __syncthreads();

  const int step = gridDim.y * kMhcTeams * kMhcTeamRows;
  int first = (team * gridDim.y + blockIdx.y) * kMhcTeamRows, buffer = 0;
  fetch_rows<kUpdate, kCollapse>(shared, buffer, team, p, first, channel);
  for (; first < p.rows; first += step, buffer ^= 1) {
    wait_for_fetches();
    wait_for_team(team);
    MhcUnit units[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) take_unit<kUpdate>(units[i], shared.arriving[team][i], in_team);
    if (first + step < p.rows) fetch_rows<kUpdate, kCollapse>(shared, buffer ^ 1, team, p, first + step, channel);
    MhcSquares squares[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      squares[i] = pass_unit<kUpdate, kCollapse, false>(units[i], p, first + kMhcGroupRows * i + lane / 4, channel,
                                                        shared.weighing[buffer][team][i][lane / 4]);
    }
    MhcProducts products[2] = {};
#pragma unroll
    for (int s = 0; s < kMhcStreams; ++s) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int t = 0; t < kMhcTiles; ++t) {
          const uint4 w = shared.weights[span][s][half][t][lane];
          multiply_unit(products[0], units[0], s, half, t, w);
          multiply_unit(products[1], units[1], s, half, t, w);
        }
      }
    }
    // The sums of the rows before have been read: all have come past the barrier above since.
#pragma unroll
    for (int i = 0; i < 2; ++i) store_sums<false, true>(shared.sums[team][i][span], products[i], squares[i]);
    wait_for_team(team);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      write_sums<false, true>(p, slice, first + kMhcGroupRows * i, shared.sums[team][i], in_team, kMhcTeamThreads);
    }
  }
}

}  // namespace deepinfer::cuda
