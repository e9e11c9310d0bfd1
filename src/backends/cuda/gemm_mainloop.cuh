// The main loop of every product of packed weights with BF16 activations: 128 rows of weights (two consumer warpgroups
// of 64) times N tokens, columns in ascending order.
//
// A block is two consumer warpgroups and at least a warp, one thread of which is the producer. A stage of the ring in
// shared memory holds kStageTiles<N> column tiles: first the tokens' slabs ([N] rows of 64 columns, 128-byte swizzle),
// then the weights' tiles of the first and of the second 64 rows. The consumers convert weights into registers and
// multiply. Every sum starts from zero and takes 16 columns an instruction in ascending order, for every N, so a
// token's results do not depend on how many tokens there are or where it stands among them.
//
// Blocks of a cluster may share tokens: each fetches its part of every slab for all of them, and a stage is free once
// the consumers of all of them have handed it back.
//
// Stages are handed back a step late: an instruction group reads its stage until it is known to be complete, and one
// group is always in flight while the next operands are converted.
#pragma once

#include "backends/cuda/pipeline.cuh"
#include "backends/cuda/weight_tiles.cuh"
#include "backends/cuda/wgmma.cuh"

namespace deepinfer::cuda {

inline constexpr int kConsumerWarps = 8;
inline constexpr int kBlockRows = 2 * kTileRows;

// With few tokens two blocks fit a multiprocessor: four warpgroups hide each other's latencies, and the next kernel's
// blocks can fetch weights while this one's end. From 64 tokens on the sums need more registers than that leaves; they
// move from the producer's warpgroup, which is whole for that, to the consumers.
template <int N>
inline constexpr bool kTwoBlocks = N <= 32;
template <int N>
inline constexpr int kGemmThreads = kConsumerWarps * 32 + (kTwoBlocks<N> ? 32 : 128);
template <int N>
inline constexpr int kSharedLimit = (kTwoBlocks<N> ? 112 : 227) * 1024;

// Column tiles of a stage: few tokens need long copies, many tokens need room.
template <int N>
inline constexpr int kStageTiles = N <= 16 ? 2 : 1;

template <int N>
inline constexpr int kSlabBytes = N * 128;

// Bytes of a stage whose weights have tiles of `bytes_of_tile`; stages start at multiples of 1024.
template <int N>
__host__ __device__ constexpr int stage_bytes(int bytes_of_tile) {
  return (kStageTiles<N> * (kSlabBytes<N> + 2 * bytes_of_tile) + 1023) / 1024 * 1024;
}

// A ring in shared memory; kCluster: blocks that share tokens.
template <int kCluster = 1>
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
      barrier_init(empty + 8 * i, kConsumerWarps * kCluster);
    }
    fence_barrier_init();
  }
  // By every thread of a consumer warp, once it has read a stage.
  __device__ __forceinline__ void release(int stage) const {
    const uint32_t lane = threadIdx.x % 32;
    __syncwarp();  // one lane speaks for the reads of all
    if constexpr (kCluster == 1) {
      if (lane == 0) barrier_arrive(empty + 8 * stage);
    } else {
      if (lane < kCluster) barrier_arrive_at(empty + 8 * stage, lane);
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

// Adds to d, which holds zeros, the sum over `num_tiles` column tiles that the producer sends. One consumer warpgroup;
// `thread` is 0 ... 127 within it, `group` 0 or 1 the half of the rows. `exponent`: TileShare's.
template <WeightFormat kFormat, int N, int kCluster>
__device__ __forceinline__ void multiply_tiles(float (&d)[N / 2], const Ring<kCluster>& ring, RingPosition& at,
                                               int num_tiles, int group, int thread, int exponent) {
  constexpr int kTiles = kStageTiles<N>;
  constexpr int kBytes = tile_bytes(kFormat);
  // Two tiles a turn: with one, the compiler cannot tell that operands of instructions in flight are left in peace, and
  // has every instruction wait for the one before (ptxas says so: C7513). Where two blocks share the registers, there
  // are too few for that at 32 tokens, and waiting is faster than spilling.
  constexpr int kUnrolled = kTiles == 1 && !kTwoBlocks<N> ? 2 : 1;
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

// The part of a warpgroup whose rows lie beyond the matrix: hands stages back unread.
template <int N, int kCluster>
__device__ __forceinline__ void skip_tiles(const Ring<kCluster>& ring, RingPosition& at, int num_tiles) {
#pragma unroll 1
  for (int k = 0; k < num_tiles; k += kStageTiles<N>) {
    barrier_wait(ring.full + 8 * at.stage, at.use);
    ring.release(at.stage);
    at.advance(ring.num_stages);
  }
}

// What the producer's thread copies into a stage: `count` column tiles from `tile` on. The weights' part and the
// tokens' part are separate, so that weights can be on their way before the tokens exist; `announce` once a stage,
// before either.
template <int N, int kCluster = 1>
struct StageFill {
  const std::byte* tiles[2];  // of the first and the second 64 rows; null where the matrix has none
  int bytes_of_tile;
  const CUtensorMap* tokens;  // [tokens, columns], box 64 columns x N / kCluster tokens
  int first_token;

  __device__ __forceinline__ void announce(const Ring<kCluster>& ring, int stage, int count) const {
    const int groups = (tiles[0] != nullptr) + (tiles[1] != nullptr);
    barrier_expect(ring.full + 8 * stage, count * (kSlabBytes<N> + bytes_of_tile * groups));
  }
  __device__ __forceinline__ void copy_weights(const Ring<kCluster>& ring, int stage, int tile, int count,
                                               uint64_t policy) const {
    const uint32_t to = shared_address(ring.stages) + stage * ring.bytes + kStageTiles<N> * kSlabBytes<N>;
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      if (tiles[g] == nullptr) continue;
      copy_bulk(to + g * kStageTiles<N> * bytes_of_tile, tiles[g] + static_cast<int64_t>(tile) * bytes_of_tile,
                count * bytes_of_tile, ring.full + 8 * stage, policy);
    }
  }
  // In a cluster: this block's share, for all; the stage must be free in all of them.
  __device__ __forceinline__ void copy_tokens(const Ring<kCluster>& ring, int stage, int tile, int count,
                                              uint64_t policy) const {
    const uint32_t to = shared_address(ring.stages) + stage * ring.bytes, barrier = ring.full + 8 * stage;
    for (int j = 0; j < count; ++j) {
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
};

}  // namespace deepinfer::cuda
