// The main loop of every product of packed weights with BF16 activations: 128 rows of weights (two consumer warpgroups
// of 64) times N tokens, columns in ascending order.
//
// A block is two consumer warpgroups and one more, one thread of which is the producer. A stage of the ring in shared memory holds kStageTiles<N> column
// tiles: first the tokens' slabs ([N] rows of 64 columns, 128-byte swizzle), then the weights' tiles of the first and
// of the second 64 rows. The consumers convert weights into registers and
// multiply. Every sum starts from zero and takes 16 columns an instruction in ascending order, for every N, so a
// token's results do not depend on how many tokens there are or where it stands among them.
//
// Stages are handed back a step late: an instruction group reads its stage until it is known to be complete, and one
// group is always in flight while the next operands are converted.
#pragma once

#include "backends/cuda/pipeline.cuh"
#include "backends/cuda/weight_tiles.cuh"
#include "backends/cuda/wgmma.cuh"

namespace deepinfer::cuda {

inline constexpr int kConsumerWarps = 8;
inline constexpr int kGemmThreads = kConsumerWarps * 32 + 128;  // registers are handed over between warpgroups
inline constexpr int kBlockRows = 2 * kTileRows;

// Column tiles of a stage: few tokens need long copies, many tokens need room.
template <int N>
inline constexpr int kStageTiles = N <= 64 ? 2 : 1;

template <int N>
inline constexpr int kSlabBytes = N * 128;

// Bytes of a stage whose weights have tiles of `bytes_of_tile`; stages start at multiples of 1024.
template <int N>
__host__ __device__ constexpr int stage_bytes(int bytes_of_tile) {
  return (kStageTiles<N> * (kSlabBytes<N> + 2 * bytes_of_tile) + 1023) / 1024 * 1024;
}

// A ring in shared memory.
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
      barrier_init(empty + 8 * i, kConsumerWarps);
    }
    fence_barrier_init();
  }
};

// Adds to nothing: d = sum over `num_tiles` column tiles that the producer sends. One consumer warpgroup; `thread` is
// 0 ... 127 within it, `group` 0 or 1 the half of the rows. `exponent`: TileShare's.
template <WeightFormat kFormat, int N>
__device__ __forceinline__ void multiply_tiles(float (&d)[N / 2], const Ring& ring, RingPosition& at, int num_tiles,
                                               int group, int thread, int exponent) {
  constexpr int kTiles = kStageTiles<N>;
  constexpr int kBytes = tile_bytes(kFormat);
  TileShare<kFormat> share;
  uint32_t a[2][8];
  int accumulate = 0;
  int to_release = -1;
  wgmma_hold(d);
  for (int k = 0; k < num_tiles; k += kTiles) {
    const std::byte* stage = ring.stages + at.stage * ring.bytes;
    const std::byte* weights = stage + kTiles * kSlabBytes<N> + group * kTiles * kBytes;
    uint64_t b = wgmma_descriptor(shared_address(stage));
    barrier_wait(ring.full + 8 * at.stage, at.use);
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      if (j > 0 && k + j >= num_tiles) break;
      share.load(weights + j * kBytes, thread);
      wgmma_wait<1>();
      share.fragments(0, exponent, a[0]);
      wgmma_fence();
      Wgmma<N>::mma(d, a[0], b, accumulate);
      Wgmma<N>::mma(d, a[0] + 4, b + 2, 1);
      wgmma_commit();
      wgmma_wait<1>();
      if (to_release >= 0 && thread % 32 == 0) barrier_arrive(ring.empty + 8 * to_release);
      to_release = -1;
      share.fragments(1, exponent, a[1]);
      wgmma_fence();
      Wgmma<N>::mma(d, a[1], b + 4, 1);
      Wgmma<N>::mma(d, a[1] + 4, b + 6, 1);
      wgmma_commit();
      accumulate = 1;
      b += kSlabBytes<N> / 16;
    }
    to_release = at.stage;
    at.advance(ring.num_stages);
  }
  wgmma_wait<0>();
  wgmma_hold(d);
  if (to_release >= 0 && thread % 32 == 0) barrier_arrive(ring.empty + 8 * to_release);
}

// The part of a warpgroup whose rows lie beyond the matrix: hands stages back unread.
template <int N>
__device__ __forceinline__ void skip_tiles(const Ring& ring, RingPosition& at, int num_tiles, int thread) {
  for (int k = 0; k < num_tiles; k += kStageTiles<N>) {
    barrier_wait(ring.full + 8 * at.stage, at.use);
    if (thread % 32 == 0) barrier_arrive(ring.empty + 8 * at.stage);
    at.advance(ring.num_stages);
  }
}

// What the producer's thread copies into a stage: `count` column tiles from `tile` on. The weights' part and the
// tokens' part are separate, so that weights can be on their way before the tokens exist; `announce` once a stage, before
// either.
template <int N>
struct StageFill {
  const std::byte* tiles[2];  // of the first and the second 64 rows; the second may be null
  int bytes_of_tile;
  const CUtensorMap* tokens;  // [tokens, columns], box 64 columns x N tokens
  int first_token;

  __device__ __forceinline__ void announce(const Ring& ring, int stage, int count) const {
    barrier_expect(ring.full + 8 * stage, count * (kSlabBytes<N> + bytes_of_tile * (tiles[1] != nullptr ? 2 : 1)));
  }
  __device__ __forceinline__ void copy_weights(const Ring& ring, int stage, int tile, int count, uint64_t policy) const {
    const uint32_t to = shared_address(ring.stages) + stage * ring.bytes + kStageTiles<N> * kSlabBytes<N>;
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      if (tiles[g] == nullptr) continue;
      copy_bulk(to + g * kStageTiles<N> * bytes_of_tile, tiles[g] + static_cast<int64_t>(tile) * bytes_of_tile,
                count * bytes_of_tile, ring.full + 8 * stage, policy);
    }
  }
  __device__ __forceinline__ void copy_tokens(const Ring& ring, int stage, int tile, int count, uint64_t policy) const {
    const uint32_t to = shared_address(ring.stages) + stage * ring.bytes;
    for (int j = 0; j < count; ++j) {
      copy_box(to + j * kSlabBytes<N>, tokens, (tile + j) * kTileCols, first_token, ring.full + 8 * stage, policy);
    }
  }
};

}  // namespace deepinfer::cuda
