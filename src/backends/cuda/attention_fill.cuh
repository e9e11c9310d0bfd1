// Rows of the keys to tiles, by the values' warpgroups, each of its own channels.
#pragma once

#include "backends/cuda/attention_finder.cuh"

namespace deepinfer::cuda {

__device__ __forceinline__ const RowList& wait_for_rows(PipelineShared& s, int n) {
  barrier_wait(shared_address(&s.rows_full[n % kRowRing]), n / kRowRing & 1);
  return s.rows[n % kRowRing];
}
__device__ __forceinline__ uint32_t half_tiles(PipelineShared& s, int n, int half) {
  return shared_address(s.keys[n & 1]) + half * kHalfBytes;
}

// Rows to tiles, a half of the channels. What is converted has been loaded a block before, and the registers are filled
// again at once: no proxy fence may stand in between, since it would wait for the loads. (Whoever reads the tiles
// through the asynchronous proxy has it.) Two threads share a row; eight rows meet in a store, so that it finds all
// banks.
template <RowKind kWindow>
struct TileFiller {
  static constexpr int kFullArrivals = 4 * kArrivalsOfWarp;

  int half, at, part;
  HalfRow held;
  uint64_t entry;

  // Loads the first block.
  __device__ TileFiller(PipelineShared& s, int which) : half(which) {
    const int lane = threadIdx.x % 32;
    at = threadIdx.x / 32 % 4 * 16 + lane % 8 + lane / 16 * 8, part = lane / 8 % 2;
    take(s, 0);
  }
  // Fills the tiles of block n and loads block n + 1.
  __device__ __forceinline__ void fill(PipelineShared& s, int n) {
    if (entry == kNoBlock) return;
    held.convert(kind_of(entry), half_tiles(s, n, half), at, part);
    warp_arrive(shared_address(&s.keys_full[n & 1][half]));
    take(s, n + 1);
  }

 private:
  __device__ __forceinline__ void take(PipelineShared& s, int n) {
    entry = wait_for_rows(s, n)[at];
    held.load(row_of(entry), kind_of(entry), half, part);
    entry &= 31;  // the address has served
    warp_arrive(shared_address(&s.rows_empty[n % kRowRing]));
  }
};

// Rows of BF16 go as they are, by asynchronous copies; nobody waits for them but the barrier.
template <>
struct TileFiller<RowKind::kBf16> {
  static constexpr int kFullArrivals = kWarpgroup;

  int half;

  __device__ TileFiller(PipelineShared&, int which) : half(which) {}
  __device__ __forceinline__ void fill(PipelineShared& s, int n) {
    const int t = threadIdx.x % kWarpgroup, unit = t % 8, slot = n % kRowRing;
    const uint32_t tiles = half_tiles(s, n, half);
    const RowList& list = wait_for_rows(s, n);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = i * 16 + t / 8;
      const uint64_t entry = list[row];
      const std::byte* from = row_of(entry) + half * 512 + unit * 16;
#pragma unroll
      for (int tile = 0; tile < 4; ++tile) {
        copy_unit_or_zero(unit_address(tiles + tile * kTileBytes, row, unit), from + tile * 128,
                          kind_of(entry) != RowKind::kNone);
      }
    }
    warp_arrive(shared_address(&s.rows_empty[slot]));
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(&s.keys_full[n & 1][half]))
                 : "memory");
  }
};

}  // namespace deepinfer::cuda
