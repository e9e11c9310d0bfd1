// The main loop of the experts' products: `multiply_tiles` of gemm_mainloop.cuh with another number of column tiles a
// stage for every format and number of tokens, and the same order of sums: from zero, 16 columns an instruction,
// columns ascending.
//
// Shared memory of a stage: the tokens' slabs, then the column tiles of the first and of the second 64 rows.
#pragma once

#include "backends/cuda/experts_wgmma.cuh"
#include "backends/cuda/pipeline.cuh"
#include "backends/cuda/weight_tiles.cuh"

namespace deepinfer::cuda {

inline constexpr int kDirectTileRows = 8;

// Three blocks a multiprocessor convert faster, two spread few items better. kMost: rows of an item. kDirect: without a
// plan in memory. kGroups: warpgroups that multiply 64 rows of weights each.
template <int kMost_, int kBlocks, bool kDirect_ = false, int kGroups_ = 2>
struct FewRows {
  static constexpr bool kDirect = kDirect_;
  static constexpr int kGroups = kGroups_, kConsumers = kGroups * 128, kThreads = kConsumers + 32;
  static constexpr int kStageBytes = kGroups == 2 ? 22016 : 12800, kStages = kBlocks == 2 ? 5 : 3, kMostStageTiles = 4;
  static constexpr int kBlocksPerSm = kBlocks;
  static constexpr int kStagedTokens = 8;
  static constexpr int kMost = kMost_;
};

// Rows that an instruction multiplies, and at most of an item. The shared expert, whose rows are all tokens, is the one
// in FP8; more than this, and the compiler finds no registers for both formats.
template <class Kind>
__host__ __device__ constexpr int width(WeightFormat format) {
  return format == WeightFormat::kF8Tile32 && Kind::kMost == 8 && !Kind::kDirect ? 24 : Kind::kMost;
}
// Column tiles of a stage.
template <class Kind>
__host__ __device__ constexpr int stage_tiles(WeightFormat format) {
  const int fit = Kind::kStageBytes / (width<Kind>(format) * 128 + Kind::kGroups * tile_bytes(format));
  return fit < 1 ? 1 : fit > Kind::kMostStageTiles ? Kind::kMostStageTiles : fit;
}

// What those who multiply know of an item.
struct alignas(16) Item {
  int part;  // of its matrices; -1: there are no more items
  int first_row, num_rows, shared;
  // Of the two warpgroups' matrices: w1 and w3, or w2 twice.
  int exponents[2];
  float scales[2];
};

// The ring of a block. A stage is free once all consumer warps have handed it back.
template <class Kind>
struct ExpertsRing {
  static constexpr int kStages = Kind::kStages;
  std::byte* stages;  // at a multiple of 1024
  uint32_t barriers;  // 16 bytes a stage
  Item* items;        // [stages] the item that begins in a stage

  __device__ __forceinline__ uint32_t full(int stage) const { return barriers + 8 * stage; }
  __device__ __forceinline__ uint32_t empty(int stage) const { return barriers + 8 * (kStages + stage); }
  // By one thread, before the block synchronises.
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full(i), 1);
      barrier_init(empty(i), Kind::kConsumers / 32 * kArrivalsOfWarp);
    }
    fence_barrier_init();
  }
  // By every thread of a consumer warp, once it has read a stage.
  __device__ __forceinline__ void release(int stage) const { warp_arrive(empty(stage)); }
};

// For the L2, in whose good time.
__device__ __forceinline__ void prefetch_bulk(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

// As copy_box of two dimensions; column tiles or planes are the third.
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap* map, int x, int y, int z, uint32_t barrier,
                                         uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, "
      "%4, %5}], [%2], %6;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "l"(policy)
      : "memory");
}

// TileShare with cheaper multipliers: those of two rows in one register, of which an instruction takes either half.
template <WeightFormat kFormat>
struct ExpertShare : TileShare<kFormat> {};
template <>
struct ExpertShare<WeightFormat::kMxfp4> : TileShare<WeightFormat::kMxfp4> {
  __device__ __forceinline__ void fragments(int half, int exponent, uint32_t (&a)[8]) const {
    uint32_t both, low, high;
    both = __byte_perm(scales, 0, half == 0 ? 0x4140 : 0x4342);
    both = both * 128 + exponent * 0x00800080u;
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\nmov.b32 %0, {l, l};\nmov.b32 %1, {h, h};\n}"
        : "=r"(low), "=r"(high)
        : "r"(both));
    split_e2m1(half == 0 ? codes.x : codes.z, a);
    split_e2m1(half == 0 ? codes.y : codes.w, a + 4);
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i] = multiply_bf16x2(a[i], i % 2 == 0 ? low : high);
  }
};

// With the instruction's N known to the compiler.
template <class Kind, WeightFormat kFormat, int N>
__device__ __forceinline__ void multiply_stages(float (&d)[N / 2], const ExpertsRing<Kind>& ring, RingPosition& at,
                                                int num_tiles, int group, int thread, int exponent) {
  constexpr int kTiles = stage_tiles<Kind>(kFormat);
  constexpr int kBytes = tile_bytes(kFormat);
  ExpertShare<kFormat> share[2];
  uint32_t a[2][8];
  int accumulate = 0;
  int to_release = -1;
  wgmma_hold(d);
  for (int k = 0; k < num_tiles; k += kTiles) {
    const std::byte* stage = ring.stages + at.stage * Kind::kStageBytes;
    const std::byte* weights = stage + kTiles * (N * 128) + group * kTiles * kBytes;
    uint32_t b =
        __shfl_sync(0xFFFFFFFFu, wgmma_descriptor_low(shared_address(stage)), 0);  // uniform for the compiler too
    barrier_wait(ring.full(at.stage), at.use);
    share[0].load(weights, thread);
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      if (j > 0 && k + j >= num_tiles) break;
      if (j + 1 < kTiles) share[(j + 1) % 2].load(weights + (j + 1) * kBytes, thread);
      wgmma_wait<1>();
      share[j % 2].fragments(0, exponent, a[0]);
      wgmma_fence();
      multiply_16<N>(d, a[0], wgmma_descriptor_from(b), accumulate);
      multiply_16<N>(d, a[0] + 4, wgmma_descriptor_from(b + 2), 1);
      wgmma_commit();
      wgmma_wait<1>();
      if (to_release >= 0) ring.release(to_release);
      to_release = -1;
      share[j % 2].fragments(1, exponent, a[1]);
      wgmma_fence();
      multiply_16<N>(d, a[1], wgmma_descriptor_from(b + 4), 1);
      multiply_16<N>(d, a[1] + 4, wgmma_descriptor_from(b + 6), 1);
      wgmma_commit();
      accumulate = 1;
      b += N * 8;
    }
    to_release = at.stage;
    at.advance(Kind::kStages);
  }
  wgmma_wait<0>();
  wgmma_hold(d);
  if (to_release >= 0) ring.release(to_release);
}

// The part of a warpgroup whose rows lie beyond the matrix: hands stages back unread.
template <class Kind>
__device__ __forceinline__ void skip_stages(const ExpertsRing<Kind>& ring, RingPosition& at, int num_tiles,
                                            int stage_tiles) {
  for (int k = 0; k < num_tiles; k += stage_tiles) {
    barrier_wait(ring.full(at.stage), at.use);
    ring.release(at.stage);
    at.advance(Kind::kStages);
  }
}

}  // namespace deepinfer::cuda
