// The passes over the streams of mhc.cu for four BF16 streams: update, collapse and projection at once.
//
// A slice is 128 channels of every stream, a span 32 of them; a lane has eight neighbouring channels of a span, in two
// halves. A row's sums are made from slices in order, a slice's from its spans in order: whatever the number of rows
// and the kernel. The squares of the collapsed row are summed alike, of many rows by the kernel after.
//
// Few rows: a block has up to three teams of four warps, a team eight rows of a slice, a warp a span of them. The block
// asks for its slice's weights, and splits them into shared memory, before the kernel before has ended. Many rows: each
// of its teams goes from 16 rows to 16 rows, which arrive in shared memory while it works on those before.
#pragma once

#include "backends/cuda/launch.cuh"
#include "backends/cuda/mhc_row.cuh"

namespace deepinfer::cuda {

inline constexpr int kMhcTeamThreads = 32 * kMhcSliceSpans;
inline constexpr int kMhcFewTeams = 3;  // most of a block
inline constexpr int kMhcTeams = 4;     // of a block for many rows
inline constexpr int kMhcTeamRows = 2 * kMhcGroupRows;
inline constexpr int kMhcManyThreads = kMhcTeams * kMhcTeamThreads;

// Eight rows of a slice on their way to a team: [stream or y][place], 16 bytes a place.
using MhcArriving = uint4[kMhcStreams + 1][kMhcTeamThreads];

// Where a unit of eight channels of a row lies: odd rows' halves change places, since a warp reads two rows at a time.
__device__ inline int place_of(int row, int unit) { return row * (kMhcSlice / kVec) + (unit ^ (row % 2 * 4)); }

// Part `thread` of asking for the rows from `first` on: half a warp has a row, whose 256 bytes are neighbours.
template <bool kUpdate>
__device__ inline void fetch_group(MhcArriving& to, int thread, const MhcStreamsParams& p, int slice, int first) {
  const int unit = thread % (kMhcSlice / kVec), r = thread / (kMhcSlice / kVec), place = place_of(r, unit);
  const int channel = slice * kMhcSlice + unit * kVec;
  const bool present = first + r < p.rows && channel < p.hidden;
  const int64_t row = present ? first + r : 0, c = present ? channel : 0;
#pragma unroll
  for (int s = 0; s < kMhcStreams; ++s) {
    fetch(&to[s][place], p.streams + row * p.streams_stride + s * p.hidden + c, present);
  }
  if (kUpdate) fetch(&to[kMhcStreams][place], p.y + row * p.y_stride + c, present);
}

template <bool kUpdate>
__device__ inline void take_unit(MhcUnit& unit, const MhcArriving& from, int span) {
  const int lane = threadIdx.x % 32, place = place_of(lane / 4, span * 4 + lane % 4);
#pragma unroll
  for (int s = 0; s < kMhcStreams; ++s) unit.set(s, from[s][place]);
  if (kUpdate) unit.set_y(from[kMhcStreams][place]);
}

using MhcSplitWeights = uint4[kMhcSliceSpans][kMhcStreams][2][kMhcTiles][32];  // by lane

struct MhcFewShared {
  MhcSpanSums<kMhcPitch> sums[kMhcFewTeams][kMhcSliceSpans];
  MhcSplitWeights weights;  // where there is a projection
};

__device__ inline void wait_for_team(int team) {
  asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(kMhcTeamThreads) : "memory");
}

// By all of a block that has at least kWarps warps, which ask for all they need at once.
template <int kWarps>
__device__ inline void split_slice(MhcSplitWeights& split, const MhcStreamsParams& p, int slice) {
  constexpr int kItems = kMhcSliceSpans * kMhcStreams / kWarps;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  MhcWeights whole[kItems] = {};
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const int item = warp + k * warps, s = item % kMhcStreams, span = item / kMhcStreams;
    const int channel = slice * kMhcSlice + span * kMhcSpan + lane % 4 * kVec;
    if (span < kMhcSliceSpans && channel < p.hidden) load_weights(whole[k], p, s, channel);
  }
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const int item = warp + k * warps, s = item % kMhcStreams, span = item / kMhcStreams;
    if (span >= kMhcSliceSpans) break;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      MhcOperand operand;
      split_weights(operand, whole[k][half]);
#pragma unroll
      for (int t = 0; t < kMhcTiles; ++t) split[span][s][half][t][lane] = operand[t];
    }
  }
}

// The lane's channels of its row, and the row's coefficients.
template <bool kUpdate, bool kCollapse>
__device__ inline void load_unit(MhcUnit& unit, MhcWeighing& w, const MhcStreamsParams& p, int64_t row, int channel) {
#pragma unroll
  for (int s = 0; s < kMhcStreams; ++s) {
    unit.set(s, *reinterpret_cast<const uint4*>(p.streams + row * p.streams_stride + s * p.hidden + channel));
  }
  if (kUpdate) {
    unit.set_y(*reinterpret_cast<const uint4*>(p.y + row * p.y_stride + channel));
    w.post = *reinterpret_cast<const float4*>(p.post + row * p.post_stride);
    const auto* mix = reinterpret_cast<const float4*>(p.mix + row * p.mix_stride);
#pragma unroll
    for (int s = 0; s < kMhcStreams; ++s) w.mix[s] = mix[s];
  }
  if (kCollapse) w.pre = *reinterpret_cast<const float4*>(p.pre + row * p.pre_stride);
}

// A team for each group of eight rows; three of them could have 168 registers a thread.
template <bool kUpdate, bool kCollapse, bool kProject>
__global__ void __maxnreg__(144) mhc_few_rows_kernel(const MhcStreamsParams p) {
  extern __shared__ __align__(16) uint8_t shared_bytes[];
  MhcFewShared& shared = *reinterpret_cast<MhcFewShared*>(shared_bytes);
  const int lane = threadIdx.x % 32, team = threadIdx.x / kMhcTeamThreads, in_team = threadIdx.x % kMhcTeamThreads;
  const int span = in_team / 32, slice = blockIdx.x, teams = blockDim.x / kMhcTeamThreads;
  const int channel = slice * kMhcSlice + span * kMhcSpan + lane % 4 * kVec;
  const int first = (blockIdx.y * teams + team) * kMhcGroupRows;
  MhcOperand early[2] = {};
  if (kProject) {
    if (teams == 1) {
      split_slice<4>(shared.weights, p, slice);
    } else {
      split_slice<8>(shared.weights, p, slice);
    }
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int t = 0; t < kMhcTiles; ++t) early[half][t] = shared.weights[span][0][half][t][lane];
    }
  }
  touch(p);
  wait_for_kernel_before();
  let_next_kernel_start();
  MhcUnit unit = {};
  MhcWeighing weighing = {};
  const int64_t row = first + lane / 4;
  if (row < p.rows && channel < p.hidden) load_unit<kUpdate, kCollapse>(unit, weighing, p, row, channel);
  const MhcSquares squares = pass_unit<kUpdate, kCollapse, kCollapse>(unit, p, row, channel, weighing);
  MhcProducts products = {};
  if (kProject) {
#pragma unroll
    for (int s = 0; s < kMhcStreams; ++s) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int t = 0; t < kMhcTiles; ++t) {
          multiply_unit(products, unit, s, half, t, s == 0 ? early[half][t] : shared.weights[span][s][half][t][lane]);
        }
      }
    }
  }
  if constexpr (kCollapse || kProject) {
    store_sums<kCollapse, kProject>(shared.sums[team][span], products, squares);
    wait_for_team(team);
    write_sums<kCollapse, kProject>(p, slice, first, shared.sums[team], in_team, kMhcTeamThreads);
  }
}

struct MhcManyShared {
  MhcSplitWeights weights;
  MhcArriving arriving[kMhcTeams][2];
  MhcWeighing weighing[2][kMhcTeams][2][kMhcGroupRows];  // of these rows and the next
  MhcSpanSums<kMhcPitch> sums[kMhcTeams][2][kMhcSliceSpans];
};

template <bool kUpdate, bool kCollapse>
__device__ inline void fetch_rows(MhcManyShared& shared, int buffer, int team, const MhcStreamsParams& p, int slice,
                                  int first) {
  const int in_team = threadIdx.x % kMhcTeamThreads;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = first + kMhcGroupRows * i;
    if (in_team < 64) fetch_weighing<kUpdate, kCollapse>(shared.weighing[buffer][team][i], p, row, in_team);
    fetch_group<kUpdate>(shared.arriving[team][i], in_team, p, slice, row);
  }
}

template <bool kUpdate, bool kCollapse>
__global__ void __launch_bounds__(kMhcManyThreads, 1) mhc_many_rows_kernel(const MhcStreamsParams p) {
  extern __shared__ __align__(16) uint8_t shared_bytes[];
  MhcManyShared& shared = *reinterpret_cast<MhcManyShared*>(shared_bytes);
  const int lane = threadIdx.x % 32, team = threadIdx.x / kMhcTeamThreads, in_team = threadIdx.x % kMhcTeamThreads;
  const int span = in_team / 32, slice = blockIdx.x;
  const int channel = slice * kMhcSlice + span * kMhcSpan + lane % 4 * kVec;
  split_slice<kMhcManyThreads / 32>(shared.weights, p, slice);
  wait_for_kernel_before();
  let_next_kernel_start();
  __syncthreads();

  const int step = gridDim.y * kMhcTeams * kMhcTeamRows;
  int first = (team * gridDim.y + blockIdx.y) * kMhcTeamRows, buffer = 0;
  fetch_rows<kUpdate, kCollapse>(shared, buffer, team, p, slice, first);
  for (; first < p.rows; first += step, buffer ^= 1) {
    wait_for_fetches();
    wait_for_team(team);
    MhcUnit units[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) take_unit<kUpdate>(units[i], shared.arriving[team][i], span);
    wait_for_team(team);  // all have taken theirs
    if (first + step < p.rows) fetch_rows<kUpdate, kCollapse>(shared, buffer ^ 1, team, p, slice, first + step);
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
