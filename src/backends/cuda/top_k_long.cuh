// Selection from a long row that comes without maxima: they are made while its values are read.
#pragma once

#include "backends/cuda/top_k_kept.cuh"

namespace deepinfer::cuda::by_block {

// Maximum j of a thread is that of run (j * kWarps + warp) * 32 + lane.
template <int kEach>
struct MadeMaxima {
  static_assert(kEach <= 32);
  uint32_t best[kEach];

  __device__ __forceinline__ int run(int j) const {
    return (j * kWarps + static_cast<int>(threadIdx.x) / 32) * 32 + static_cast<int>(threadIdx.x) % 32;
  }
  __device__ __forceinline__ explicit MadeMaxima(const Row& row) {
    constexpr int kAtOnce = 4;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Quads quads(row.values, row.count, false);
#pragma unroll
    for (int some = 0; some < kEach; some += kAtOnce) {
      uint4 read[kAtOnce][2];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = ((some + i) * kWarps + warp) * 32 * kMaximaRows + 4 * lane;
        read[i][0] = quads.load(at);
        read[i][1] = quads.load(at + 128);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        // Two lanes have halves of run lane / 2 and of the one 16 further: the even one keeps the first.
        uint32_t of[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const uint4 v = read[i][h];
          of[h] = max(max(v.x, v.y), max(v.z, v.w));
        }
        const bool is_odd = lane & 1;
        const uint32_t kept = max(is_odd ? of[1] : of[0], __shfl_xor_sync(~0u, is_odd ? of[0] : of[1], 1));
        best[some + i] = __shfl_sync(~0u, kept, lane % 16 * 2 + lane / 16);
      }
    }
  }
};

// Calls write(place, j) for the marked ones of a thread's maxima, places in the order of runs. Returns how many.
template <int kEach, typename Write>
__device__ __forceinline__ uint32_t write_marked_runs(KeptShared& s, uint32_t marks, const Write& write) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t mine = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const uint32_t votes = __ballot_sync(~0u, marks >> j & 1);
    if (lane == j) mine = __popc(votes);
  }
  if (lane < kEach) s.of_round[lane][warp] = mine;
  __syncthreads();
  uint32_t total = 0, before = 0;  // of round `lane`
  if (lane < kEach) {
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const uint32_t count = s.of_round[lane][w];
      total += count;
      if (w < warp) before += count;
    }
  }
  const uint32_t sum = inclusive_scan_of_warp(total, lane);
  before += sum - total;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const bool is_marked = marks >> j & 1;
    const uint32_t votes = __ballot_sync(~0u, is_marked), first = __shfl_sync(~0u, before, j);
    if (is_marked) write(first + __popc(votes & ((1u << lane) - 1)), j);
  }
  return __shfl_sync(~0u, sum, 31);
}

// False: nothing was written.
template <int kEach>
__device__ __forceinline__ bool select_long(KeptShared& s, WarpValues<kWarps>& warps, const Row& row, uint32_t k,
                                            const Output& out) {
  const MadeMaxima<kEach> made(row);
  uint32_t best[2] = {};
#pragma unroll
  for (int j = 0; j < kEach; ++j) best[j % 2] = max(best[j % 2], made.best[j]);
  const uint2 range = bound_of(s, best, k);
  const int num_maxima = (row.count + kMaximaRows - 1) / kMaximaRows;
  uint32_t reaching = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    reaching |= uint32_t{made.best[j] >= range.x && made.run(j) < num_maxima} << j;
  }
  const uint32_t num_runs = write_marked_runs<kEach>(s, reaching, [&](uint32_t to, int j) {
    if (to < 2 * kThreads) s.runs[to] = made.run(j);
  });
  return select_from_runs(s, warps, row, num_runs, range, k, out);
}

}  // namespace deepinfer::cuda::by_block
