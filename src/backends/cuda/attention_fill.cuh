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
// through the asynchronous proxy has it.) Thread t has chunk t % 8 of the half of rows t / 8 + 16 i.
template <RowKind kWindow>
struct TileFiller {
  static constexpr int kFullArrivals = 4, kRows = 4;

  int half;
  RowChunk held[kRows];
  uint32_t kinds = 0;  // a byte a row
  bool there;          // the block

  // Loads the first block.
  __device__ TileFiller(PipelineShared& s, int which) : half(which) {
    const RowList& list = wait_for_rows(s, 0);
#pragma unroll
    for (int i = 0; i < kRows; ++i) take(list, i);
    arrive_warp(&s.rows_empty[0], threadIdx.x % 32);
  }
  // Fills the tiles of block n and loads block n + 1.
  __device__ __forceinline__ void fill(PipelineShared& s, int n) {
    if (!there) return;
    const int thread = threadIdx.x % kWarpgroup, chunk = thread % 8, turn = chunk / 2;
    const RowList& next = wait_for_rows(s, n + 1);
    // Units of the row: in tile `turn`, of its half chunk % 2, starting with unit `turn` of four.
    const uint32_t row = half_tiles(s, n, half) + turn * kTileBytes + thread / 8 * 128;
    const uint32_t base = (thread / 8 & 7) ^ chunk % 2 * 4;
    uint32_t to[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = row + ((base ^ (i + turn & 3)) << 4);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      held[i].convert(static_cast<RowKind>(kinds >> 8 * i & 15), chunk, turn, to, i * 16 * 128);
      take(next, i);
    }
    arrive_warp(&s.rows_empty[(n + 1) % kRowRing], thread % 32);
    arrive_warp(&s.keys_full[n & 1][half], thread % 32);
  }

 private:
  __device__ __forceinline__ void take(const RowList& list, int i) {
    const int thread = threadIdx.x % kWarpgroup;
    const uint64_t entry = list[thread / 8 + 16 * i];
    const uint32_t kind = static_cast<uint32_t>(entry) & 15;
    held[i].load(row_of(entry), static_cast<RowKind>(kind), half * 8 + thread % 8);
    kinds = (kinds & ~(0xFFu << 8 * i)) | kind << 8 * i;
    if (i == 0) there = entry != kNoBlock;
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
    arrive_warp(&s.rows_empty[slot], t % 32);
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(&s.keys_full[n & 1][half]))
                 : "memory");
  }
};

}  // namespace deepinfer::cuda
