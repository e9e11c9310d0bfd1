// The main loop of every product of packed weights with BF16 activations: a block's consumer warpgroups, 64 rows of
// weights each, times N tokens, columns in ascending order.
//
// A block is its consumer warpgroups and two warps, a thread of each of which is a producer. A stage of the ring in
// shared memory holds kStageTiles<N> column tiles: first the tokens' slabs ([N] rows of 64 columns, 128-byte swizzle),
// then the weights' tiles of each 64 rows. The consumers convert weights into registers and multiply. Every sum starts
// from zero and takes 16 columns an instruction in ascending order, for every N, so a token's results do not depend on
// how many tokens there are or where it stands among them.
//
// Blocks of a cluster may share tokens: each fetches its part of every slab for all of them, and a stage is free once
// the consumers of all of them have handed it back.
#pragma once

#include "backends/cuda/cluster.cuh"
#include "backends/cuda/pipeline.cuh"
#include "backends/cuda/weight_tiles.cuh"
#include "backends/cuda/wgmma.cuh"

namespace deepinfer::cuda {

// Tokens of a block that are few: their sums leave registers for the operands of a whole stage.
inline constexpr int kFewTokens = 64;

// Column tiles of a stage: few tokens need long copies, many tokens need room.
template <int N>
inline constexpr int kStageTiles = N <= kFewTokens ? 2 : 1;

template <int N>
inline constexpr int kSlabBytes = N * 128;

// Bytes of a stage whose weights have tiles of `bytes_of_tile`; stages start at multiples of 1024.
template <int N, int kGroups>
__host__ __device__ constexpr int stage_bytes(int bytes_of_tile) {
  return (kStageTiles<N> * (kSlabBytes<N> + kGroups * bytes_of_tile) + 1023) / 1024 * 1024;
}

// By all `threads` threads of the block: they go on once warp `first` is here, which does not wait for them.
__device__ __forceinline__ void start_after_warp(int first, int threads) {
  if (threadIdx.x / 32 == first) {
    __syncwarp();
    asm volatile("bar.arrive 0, %0;" ::"r"(threads) : "memory");
  } else {
    sync_threads(0, threads);
  }
}

// A ring in shared memory. kGroups: consumer warpgroups; kCluster: blocks that share tokens.
template <int kGroups, int kCluster = 1>
struct Ring {
  std::byte* stages;  // at a multiple of 1024
  uint32_t full;      // addresses of barriers, 8 bytes each
  uint32_t empty;
  int num_stages;
  int bytes;  // of a stage

  // By one thread, before the block synchronises.
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < num_stages; ++i) {
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, 4 * kGroups * kCluster * kArrivalsOfWarp);
    }
    fence_barrier_init();
  }
  __device__ __forceinline__ const std::byte* stage(const RingPosition& at) const { return stages + at.stage * bytes; }
  __device__ __forceinline__ void wait_full(const RingPosition& at) const { barrier_wait(full + 8 * at.stage, at.use); }
  __device__ __forceinline__ void wait_empty(const RingPosition& at) const {
    barrier_wait(empty + 8 * at.stage, at.use ^ 1);
  }
  // By every thread of a consumer warp, once it has read a stage.
  __device__ __forceinline__ void release(int stage) const {
    if constexpr (kCluster == 1) {
      warp_arrive(empty + 8 * stage);
    } else {
      warp_arrive_everywhere<kCluster>(empty + 8 * stage);
    }
  }
};

// Has the bits computed here, and not after the wait that follows.
template <WeightFormat kFormat>
__device__ __forceinline__ void hold_bits(uint32_t (&bits)[8]) {
  if constexpr (kFormat != WeightFormat::kBf16) {
#pragma unroll
    for (uint32_t& x : bits) asm volatile("" : "+r"(x));
  }
}

// Two warpgroups that take turns at the tensor cores. A warp that has sent an instruction with operands in registers
// waits until those are read, so two that send and convert at the same time hold each other up: a layer's matrices took
// 66.5 us for 64 tokens instead of 63.9 (H200). `taken` says whether there are turns: both must come equally often.
template <bool kExist>
struct Turns {
  bool taken;
  int group;
  static constexpr int kBarrier = 4;

  __device__ __forceinline__ void begin() const {  // once in a kernel
    if (kExist && group == 1) pass_on();
  }
  __device__ __forceinline__ void wait() const {
    if (kExist && taken) sync_threads(kBarrier + group, 256);
  }
  __device__ __forceinline__ void end() const {
    if (kExist && taken) pass_on();
  }

 private:
  __device__ __forceinline__ void pass_on() const {
    asm volatile("bar.arrive %0, 256;" ::"r"(kBarrier + 1 - group) : "memory");
  }
};
template <int N, int kGroups>
using TurnsOf = Turns<N == kFewTokens && kGroups == 2>;

// Hides where a value comes from, so that a loop does not work it out again in every turn.
template <typename T>
__device__ __forceinline__ void keep(T& x) {
  asm volatile("" : "+r"(x));
}

// multiply_tiles for few tokens. All instructions of a stage are one group; while it runs, the next stage's operands
// are made in the other of two sets of registers (kSets; with one, once it is done).
//
// Instructions count: beside matrix instructions that fill the tensor cores, all others take about twice their time
// (H200), and converting a stage takes two hundred a warp.
template <WeightFormat kFormat, int N, int kSets, int kGroups, int kCluster>
__device__ __forceinline__ void multiply_few(float (&d)[N / 2], const Ring<kGroups, kCluster>& ring, RingPosition& at,
                                             int num_tiles, const TurnsOf<N, kGroups>& turns, int group, int thread,
                                             int exponent) {
  static_assert(kCluster == 1);
  constexpr int kTiles = kStageTiles<N>, kBytes = tile_bytes(kFormat);
  using Share = TileShare<kFormat>;
  using Operands = uint32_t[2 * kTiles][8];
  Operands a[kSets];
  const uint32_t first_stage = shared_address(ring.stages), to_empty = ring.empty - ring.full;
  const uint32_t own = kTiles * kSlabBytes<N> + group * kTiles * kBytes;
  uint32_t codes = own + Share::codes_at(thread), scales = own + Share::scales_at(thread);
  uint32_t last = ring.full + 8 * (ring.num_stages - 1);
  keep(codes), keep(scales), keep(last), keep(exponent);
  uint32_t stage = first_stage + at.stage * ring.bytes, full = ring.full + 8 * at.stage, use = at.use, b;
  // What instructions take from uniform registers gets there once a stage, and not once an instruction.
  const auto describe = [&] { b = __shfl_sync(0xFFFFFFFFu, wgmma_descriptor_low(stage), 0); };
  const auto advance = [&] {
    const bool wraps = full == last;
    stage = wraps ? first_stage : stage + ring.bytes;
    full = wraps ? ring.full : full + 8;
    use ^= wraps;
    describe();
  };
  const auto prepare = [&](int tiles, Operands& to) {
    Share share[kTiles];
    uint32_t bits[2 * kTiles][8], multipliers[2 * kTiles][2];
    barrier_wait(full, use);
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      if (j < tiles) share[j].load(stage + codes, stage + scales, j * kBytes);
    }
#pragma unroll
    for (int j = 0; j < 2 * kTiles; ++j) {
      if (j < 2 * tiles) share[j / 2].prepare(j % 2, exponent, bits[j], multipliers[j]);
    }
#pragma unroll
    for (int j = 0; j < 2 * kTiles; ++j) {
      if (j >= 2 * tiles) continue;
      share[j / 2].finish(j % 2, bits[j], multipliers[j], to[j]);
#pragma unroll
      for (uint32_t& x : to[j]) keep(x);  // made here, and not after the wait that follows
    }
  };
  const auto multiply = [&](int tiles, const Operands& from) {
    turns.wait();
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) {
      if (i >= 4 * tiles) continue;
      Wgmma<N>::mma(d, from[i / 2] + i % 2 * 4, wgmma_descriptor_from(b + i / 4 * (kSlabBytes<N> / 16) + i % 4 * 2), 1);
    }
    wgmma_commit();
    turns.end();
  };
  wgmma_hold(d);
  describe();
  int left = num_tiles / kTiles;
  if (left > 0) prepare(kTiles, a[0]);
#pragma unroll 1
  while (left > 0) {
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      multiply(kTiles, a[set]);
      const uint32_t running = full + to_empty;
      advance();
      if (kSets > 1 && left > 1) prepare(kTiles, a[(set + 1) % kSets]);
      wgmma_wait<0>();
      warp_arrive(running);
      if (kSets == 1 && left > 1) prepare(kTiles, a[set]);
      if (--left == 0) break;
    }
  }
  if (num_tiles % kTiles != 0) {
    prepare(1, a[0]);
    multiply(1, a[0]);
    wgmma_wait<0>();
    warp_arrive(full + to_empty);
    advance();
  }
  wgmma_hold(d);
  at.stage = static_cast<int>(full - ring.full) / 8, at.use = use;
}

// multiply_tiles for many tokens. Stages are handed back a step late: an instruction group reads its stage until it is
// known to be complete, and one group is always in flight while the next operands are converted.
template <WeightFormat kFormat, int N, int kGroups, int kCluster>
__device__ __forceinline__ void multiply_many(float (&d)[N / 2], const Ring<kGroups, kCluster>& ring, RingPosition& at,
                                              int num_tiles, int group, int thread, int exponent) {
  constexpr int kTiles = kStageTiles<N>;
  constexpr int kBytes = tile_bytes(kFormat);
  // Two tiles a turn: with one, the compiler cannot tell that operands of instructions in flight are left in peace, and
  // has every instruction wait for the one before (ptxas says so: C7513).
  constexpr int kUnrolled = kTiles == 1 ? 2 : 1;
  TileShare<kFormat> share;
  uint32_t a[2][8], bits[8], multipliers[2];
  int to_release = -1;
  wgmma_hold(d);
#pragma unroll kUnrolled
  for (int k = 0; k < num_tiles; k += kTiles) {
    const std::byte* stage = ring.stages + at.stage * ring.bytes;
    const std::byte* weights = stage + kTiles * kSlabBytes<N> + group * kTiles * kBytes;
    uint32_t b = wgmma_descriptor_low(shared_address(stage));
    barrier_wait(ring.full + 8 * at.stage, at.use);
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      if (j > 0 && k + j >= num_tiles) break;
      share.load(weights + j * kBytes, thread);
      share.prepare(0, exponent, bits, multipliers);
      hold_bits<kFormat>(bits);
      wgmma_wait<1>();
      share.finish(0, bits, multipliers, a[0]);
      wgmma_fence();
      Wgmma<N>::mma(d, a[0], wgmma_descriptor_from(b), 1);
      Wgmma<N>::mma(d, a[0] + 4, wgmma_descriptor_from(b + 2), 1);
      wgmma_commit();
      share.prepare(1, exponent, bits, multipliers);
      hold_bits<kFormat>(bits);
      wgmma_wait<1>();
      if (j == 0 && k > 0) ring.release(to_release);
      share.finish(1, bits, multipliers, a[1]);
      wgmma_fence();
      Wgmma<N>::mma(d, a[1], wgmma_descriptor_from(b + 4), 1);
      Wgmma<N>::mma(d, a[1] + 4, wgmma_descriptor_from(b + 6), 1);
      wgmma_commit();
      b += kSlabBytes<N> / 16;
    }
    to_release = at.stage;
    at.advance(ring.num_stages);
  }
  wgmma_wait<0>();
  wgmma_hold(d);
  ring.release(to_release);
}

// Adds to d, which holds zeros, the sum over `num_tiles` column tiles that the producer sends. One consumer warpgroup;
// `thread` is 0 ... 127 within it, `group` says which 64 of the block's rows. `exponent`: TileShare's. `takes_turns`:
// both warpgroups of the block call it. kSets: multiply_few's.
template <WeightFormat kFormat, int N, int kSets = 2, int kGroups, int kCluster>
__device__ __forceinline__ void multiply_tiles(float (&d)[N / 2], const Ring<kGroups, kCluster>& ring, RingPosition& at,
                                               int num_tiles, int group, int thread, int exponent,
                                               bool takes_turns = false) {
  // Two blocks of two warpgroups have too few registers for the operands of two tiles.
  if constexpr (kGroups == 1 || N == kFewTokens) {
    multiply_few<kFormat, N, kSets>(d, ring, at, num_tiles, {takes_turns, group}, group, thread, exponent);
  } else {
    multiply_many<kFormat, N>(d, ring, at, num_tiles, group, thread, exponent);
  }
}

// The part of a warpgroup whose rows lie beyond the matrix: hands stages back unread.
template <int N, int kGroups, int kCluster>
__device__ __forceinline__ void skip_tiles(const Ring<kGroups, kCluster>& ring, RingPosition& at, int num_tiles) {
#pragma unroll 1
  for (int k = 0; k < num_tiles; k += kStageTiles<N>) {
    barrier_wait(ring.full + 8 * at.stage, at.use);
    ring.release(at.stage);
    at.advance(ring.num_stages);
  }
}

// What a stage is filled with: `count` column tiles from `tile` on. The weights' part and the tokens' part are
// separate, so that weights can be on their way before the tokens exist.
template <int N, int kGroups>
struct WeightFill {
  const std::byte* tiles;  // of the first 64 rows
  int64_t row_bytes;       // of 64 rows
  int num_rows;            // of 64: those that the matrix has, kGroups at most, and none if not positive
  int bytes_of_tile;
  int bytes_of_slab = kSlabBytes<N>;  // that are fetched

  // Announces all of the stage, tokens included, and fetches the weights.
  template <int kCluster>
  __device__ __forceinline__ void copy(const Ring<kGroups, kCluster>& ring, int stage, int tile, int count,
                                       uint64_t policy) const {
    const uint32_t to = shared_address(ring.stages) + stage * ring.bytes + kStageTiles<N> * kSlabBytes<N>;
    const uint32_t barrier = ring.full + 8 * stage;
    barrier_expect(barrier, count * (bytes_of_slab + bytes_of_tile * max(num_rows, 0)));
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (g >= num_rows) break;
      copy_bulk(to + g * kStageTiles<N> * bytes_of_tile,
                tiles + g * row_bytes + static_cast<int64_t>(tile) * bytes_of_tile, count * bytes_of_tile, barrier,
                policy);
    }
  }
};

// `tokens`: [tokens, columns], box 64 columns x N / kCluster tokens. In a cluster: this block's share, for all; the
// stage must be free in all of them.
template <int N, int kGroups, int kCluster>
__device__ __forceinline__ void copy_tokens(const Ring<kGroups, kCluster>& ring, const CUtensorMap* tokens,
                                            int first_token, int stage, int tile, int count, uint64_t policy) {
  const uint32_t to = shared_address(ring.stages) + stage * ring.bytes, barrier = ring.full + 8 * stage;
#pragma unroll
  for (int j = 0; j < kStageTiles<N>; ++j) {
    if (j >= count) break;
    const int x = (tile + j) * kTileCols;
    if constexpr (kCluster == 1) {
      copy_box(to + j * kSlabBytes<N>, tokens, x, first_token, barrier, policy);
    } else {
      const uint32_t rank = block_in_cluster();
      copy_box_to_cluster(to + j * kSlabBytes<N> + rank * (kSlabBytes<N> / kCluster), tokens, x,
                          first_token + rank * (N / kCluster), barrier, policy, (1u << kCluster) - 1);
    }
  }
}

}  // namespace deepinfer::cuda
