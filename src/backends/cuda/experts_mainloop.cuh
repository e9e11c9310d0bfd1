// The main loop of the experts' products: `multiply_tiles` of gemm_mainloop.cuh with another number of column tiles a
// stage for every format and number of tokens, and the same order of sums: from zero, 16 columns an instruction, columns
// ascending.
//
// Shared memory of a stage: the tokens' slabs, then the column tiles of the first and of the second 64 rows.
#pragma once

#include "backends/cuda/pipeline.cuh"
#include "backends/cuda/weight_tiles.cuh"
#include "backends/cuda/wgmma.cuh"

namespace deepinfer::cuda {

inline constexpr int kExpertsConsumers = 256;  // threads: two warpgroups of 64 rows

// What tells kernels for few rows an expert from those for many.
template <int N>
struct FewRows {
  static constexpr int kStageBytes = 22016, kStages = 5, kMostStageTiles = 4;
  static constexpr int kThreads = kExpertsConsumers + 32;
  static constexpr int kBlocksPerSm = 2, kCluster = 1;
  static constexpr int kStagedTokens = 8;
  static constexpr int kMost = N;  // rows of a WorkTile
  static constexpr bool kGathers = true;
  static constexpr bool kMovesRegisters = false;
};
struct ManyRows {
  static constexpr int kStageBytes = 25600, kStages = 8, kMostStageTiles = 2;
  static constexpr int kThreads = kExpertsConsumers + 128;  // registers move between warpgroups
  static constexpr int kBlocksPerSm = 1, kCluster = 2;
  static constexpr int kStagedTokens = 16;
  static constexpr int kMost = 128;
  static constexpr bool kGathers = false;
  static constexpr bool kMovesRegisters = true;
};
inline constexpr int kBoxRows = 16;  // of a copy of dense rows

// The instruction's N for so many rows.
template <class Kind>
__host__ __device__ constexpr int instruction_rows(int rows) {
  if (Kind::kGathers) return Kind::kMost;
  return rows <= 32 ? 32 : rows <= 64 ? 64 : rows <= 96 ? 96 : 128;
}

// Column tiles of a stage.
template <class Kind>
__host__ __device__ constexpr int stage_tiles(WeightFormat format, int n) {
  const int fit = Kind::kStageBytes / (n * 128 + 2 * tile_bytes(format));
  return fit < 1 ? 1 : fit > Kind::kMostStageTiles ? Kind::kMostStageTiles : fit;
}

// The ring of a block. A stage is free once the consumers of all blocks of the cluster have handed it back: tokens arrive
// in all of them at once.
template <class Kind>
struct ExpertsRing {
  static constexpr int kStages = Kind::kStages;
  std::byte* stages;  // at a multiple of 1024
  uint32_t barriers;  // 16 bytes a stage

  __device__ __forceinline__ uint32_t full(int stage) const { return barriers + 8 * stage; }
  __device__ __forceinline__ uint32_t empty(int stage) const { return barriers + 8 * (kStages + stage); }
  // By one thread, before the block synchronises.
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full(i), 1);
      barrier_init(empty(i), kExpertsConsumers / 32 * Kind::kCluster);
    }
    fence_barrier_init();
  }
  // By every thread of a consumer warp, once it has read a stage.
  __device__ __forceinline__ void release(int stage) const {
    const uint32_t lane = threadIdx.x % 32;
    if constexpr (Kind::kCluster == 1) {
      if (lane == 0) barrier_arrive(empty(stage));
    } else {
      if (lane < Kind::kCluster) barrier_arrive_at(empty(stage), lane);
    }
  }
};

// wgmma_descriptor in halves: only the lower one changes, and 32 bits of it never carry.
inline constexpr uint32_t kDescriptorHigh = 64u | 1u << 30;
__device__ __forceinline__ uint32_t descriptor_low(uint32_t shared_address) {
  return (shared_address & 0x3FFFF) >> 4 | 1u << 16;
}
__device__ __forceinline__ uint64_t descriptor_of(uint32_t low) {
  return static_cast<uint64_t>(kDescriptorHigh) << 32 | low;
}

// For the L2, in whose good time.
__device__ __forceinline__ void prefetch_bulk(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

template <class Kind, WeightFormat kFormat, int N>
__device__ __forceinline__ void multiply_stages(float (&d)[N / 2], const ExpertsRing<Kind>& ring, RingPosition& at,
                                                int num_tiles, int group, int thread, int exponent) {
  constexpr int kTiles = stage_tiles<Kind>(kFormat, N);
  constexpr int kBytes = tile_bytes(kFormat);
  TileShare<kFormat> share[2];
  uint32_t a[2][8];
  int accumulate = 0;
  int to_release = -1;
  wgmma_hold(d);
  for (int k = 0; k < num_tiles; k += kTiles) {
    const std::byte* stage = ring.stages + at.stage * Kind::kStageBytes;
    const std::byte* weights = stage + kTiles * (N * 128) + group * kTiles * kBytes;
    uint32_t b = descriptor_low(shared_address(stage));
    barrier_wait(ring.full(at.stage), at.use);
    share[0].load(weights, thread);
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      if (j > 0 && k + j >= num_tiles) break;
      if (j + 1 < kTiles) share[(j + 1) % 2].load(weights + (j + 1) * kBytes, thread);
      wgmma_wait<1>();
      share[j % 2].fragments(0, exponent, a[0]);
      wgmma_fence();
      Wgmma<N>::mma(d, a[0], descriptor_of(b), accumulate);
      Wgmma<N>::mma(d, a[0] + 4, descriptor_of(b + 2), 1);
      wgmma_commit();
      wgmma_wait<1>();
      if (to_release >= 0) ring.release(to_release);
      to_release = -1;
      share[j % 2].fragments(1, exponent, a[1]);
      wgmma_fence();
      Wgmma<N>::mma(d, a[1], descriptor_of(b + 4), 1);
      Wgmma<N>::mma(d, a[1] + 4, descriptor_of(b + 6), 1);
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
__device__ __forceinline__ void skip_stages(const ExpertsRing<Kind>& ring, RingPosition& at, int num_tiles, int stage_tiles) {
  for (int k = 0; k < num_tiles; k += stage_tiles) {
    barrier_wait(ring.full(at.stage), at.use);
    ring.release(at.stage);
    at.advance(Kind::kStages);
  }
}

}  // namespace deepinfer::cuda
