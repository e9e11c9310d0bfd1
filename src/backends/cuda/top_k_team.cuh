// The threads that select from one row: a block, or the blocks of a cluster, each with the next part of the row. What
// they have in common: sums and bounds over all of them, in the order of the row.
//
// Blocks of a cluster write what the others need straight into their shared memory and have it counted there: no block
// waits for more than the bytes it asked for, none fences its other writes. Two barriers and buffers alternate: whoever
// sends for the turn after next has what this block sent for the next, so has read this one's. All that is sent to a
// block is waited for by it, so none ends early.
#pragma once

#include <cstdint>

#include "backends/cuda/cluster.cuh"
#include "backends/cuda/pipeline.cuh"
#include "backends/cuda/top_k.cuh"
#include "backends/cuda/top_k_scan.cuh"

namespace deepinfer::cuda {

inline constexpr int kTopKThreads = 512;
inline constexpr int kTopKWarps = kTopKThreads / 32;
inline constexpr int kTopKBins = 256;  // of a histogram
inline constexpr int kTopKRanked = 256;

struct TopKShared {
  alignas(16) uint32_t histogram[3][kTopKBins];
  alignas(16) uint32_t received[2][kTopKCluster * kTopKBins];  // histograms by block
  uint64_t ranked[kTopKRanked];
  uint2 of_warp[2][kTopKWarps];
  uint2 of_block[2][kTopKCluster];
  uint64_t barriers[2];
  uint32_t num_ranked;
  uint32_t num_won;
};

template <typename T>
__device__ __forceinline__ void send(T* to, uint64_t* barrier, int block, const T& value) {
  send(address_in(shared_address(to), block), value, address_in(shared_address(barrier), block));
}

struct TopKTeam {
  TopKShared& s;
  int num_blocks;
  int block;  // number of this one
  WarpValues<kTopKWarps> warps{s.of_warp};
  uint32_t turn = 0;  // of what is sent
  uint32_t histogram_turn = 0;

  __device__ TopKTeam(TopKShared& shared, int blocks_of_team, int number)
      : s(shared), num_blocks(blocks_of_team), block(number) {
    if (num_blocks == 1) return;
    if (threadIdx.x == 0) {
      barrier_init(shared_address(&s.barriers[0]), 1);
      barrier_init(shared_address(&s.barriers[1]), 1);
      fence_barrier_init();
    }
    // Nothing but the barriers has to be seen by others.
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::: "memory");
  }
  __device__ uint64_t* barrier() const { return &s.barriers[turn & 1]; }
  // Until `bytes` have come in this turn; they were or are being sent.
  __device__ void receive(uint32_t bytes) {
    const uint32_t at = shared_address(barrier());
    if (threadIdx.x == 0) barrier_expect(at, bytes);
    barrier_wait(at, turn / 2 & 1);
    ++turn;
  }
  // Shows the value that all threads of a block have to all blocks; where it lies, by block.
  __device__ const uint2* share(uint2 of_block) {
    uint2* values = s.of_block[turn & 1];
    if (threadIdx.x < num_blocks) send(&values[block], barrier(), static_cast<int>(threadIdx.x), of_block);
    receive(num_blocks * sizeof(uint2));
    return values;
  }
  // Shows this turn's histogram, complete at the barrier before, to all blocks; theirs, by block.
  __device__ const uint32_t* share_histogram(const uint32_t* histogram) {
    if (num_blocks == 1) return histogram;
    constexpr int kQuads = kTopKBins / 4;
    const int quad = threadIdx.x % kQuads, to = threadIdx.x / kQuads;
    auto* received = reinterpret_cast<uint4*>(s.received[turn & 1]);
    if (to < num_blocks) {
      send(&received[block * kQuads + quad], barrier(), to, reinterpret_cast<const uint4*>(histogram)[quad]);
    }
    const uint32_t* histograms = s.received[turn & 1];
    receive(num_blocks * kTopKBins * sizeof(uint32_t));
    return histograms;
  }
};

}  // namespace deepinfer::cuda
