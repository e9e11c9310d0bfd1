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

inline constexpr int kExpertsConsumers = 256;  // threads: two warpgroups of 64 rows

// What tells kernels for few rows an expert from those for many.
// Three blocks a multiprocessor convert faster, two spread few items better.
template <int N, int kBlocks>
struct FewRows {
  static constexpr int kStageBytes = 22016, kStages = kBlocks == 2 ? 5 : 3, kMostStageTiles = 4;
  static constexpr int kThreads = kExpertsConsumers + 32;
  static constexpr int kBlocksPerSm = kBlocks, kCluster = 1;
  static constexpr int kStagedTokens = 8;
  static constexpr int kMost = N;  // rows of a WorkTile
  static constexpr bool kGathers = true;
  static constexpr bool kMovesRegisters = false;
};
struct ManyRows {
  static constexpr int kStageBytes = 25600, kStages = 8, kMostStageTiles = 4;
  static constexpr int kThreads = kExpertsConsumers + 128;  // registers move between warpgroups
  static constexpr int kBlocksPerSm = 1, kCluster = 2;
  static constexpr int kStagedTokens = 16;
  static constexpr int kMost = 128;
  static constexpr bool kGathers = false;
  static constexpr bool kMovesRegisters = true;
};
inline constexpr int kRowUnit =
    16;  // of dense rows that an item multiplies, of which a block of a cluster copies its part

// The instruction's N for so many rows.
template <class Kind>
__host__ __device__ constexpr int instruction_rows(int rows) {
  return Kind::kGathers ? Kind::kMost : rows <= kRowUnit ? kRowUnit : (rows + kRowUnit - 1) / kRowUnit * kRowUnit;
}

// Column tiles of a stage.
template <class Kind>
__host__ __device__ constexpr int stage_tiles(WeightFormat format, int n) {
  const int fit = Kind::kStageBytes / (n * 128 + 2 * tile_bytes(format));
  return fit < 1 ? 1 : fit > Kind::kMostStageTiles ? Kind::kMostStageTiles : fit;
}

// The ring of a block. A stage is free once the consumers of all blocks of the cluster have handed it back: tokens
// arrive in all of them at once.
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
    __syncwarp();  // one lane speaks for the reads of all
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
  constexpr int kTiles = stage_tiles<Kind>(kFormat, N);
  constexpr int kBytes = tile_bytes(kFormat);
  ExpertShare<kFormat> share[2];
  uint32_t a[2][8];
  int accumulate = 0;
  int to_release = -1;
  wgmma_hold(d);
  for (int k = 0; k < num_tiles; k += kTiles) {
    const std::byte* stage = ring.stages + at.stage * Kind::kStageBytes;
    const std::byte* weights = stage + kTiles * (N * 128) + group * kTiles * kBytes;
    uint32_t b = __shfl_sync(0xFFFFFFFFu, descriptor_low(shared_address(stage)), 0);  // uniform for the compiler too
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

// Two instructions, of which `n` chooses the N; they use the first n / 2 of the sums.
template <int N, int kSums>
__device__ __forceinline__ void multiply_pair(float (&d)[kSums], const uint32_t* a, uint32_t b, int accumulate) {
  float(&part)[N / 2] = reinterpret_cast<float(&)[N / 2]>(d);
  wgmma_fence();
  Wgmma<N>::mma(part, a, descriptor_of(b), accumulate);
  Wgmma<N>::mma(part, a + 4, descriptor_of(b + 2), 1);
  wgmma_commit();
}
__device__ __forceinline__ void multiply_pair(float (&d)[64], int n, const uint32_t* a, uint32_t b, int accumulate) {
  if (n <= 64) {
    if (n <= 32) return n == 16 ? multiply_pair<16>(d, a, b, accumulate) : multiply_pair<32>(d, a, b, accumulate);
    return n == 48 ? multiply_pair<48>(d, a, b, accumulate) : multiply_pair<64>(d, a, b, accumulate);
  }
  if (n <= 96) return n == 80 ? multiply_pair<80>(d, a, b, accumulate) : multiply_pair<96>(d, a, b, accumulate);
  return n == 112 ? multiply_pair<112>(d, a, b, accumulate) : multiply_pair<128>(d, a, b, accumulate);
}

// Has the bits computed here, and not after the wait that follows.
__device__ __forceinline__ void hold_here(uint32_t (&bits)[8]) {
#pragma unroll
  for (uint32_t& x : bits) asm volatile("" : "+r"(x));
}

// With the N found at each pair of instructions: one body for all of them, and the registers of one.
template <class Kind, WeightFormat kFormat>
__device__ __forceinline__ void multiply_stages(float (&d)[Kind::kMost / 2], int n, const ExpertsRing<Kind>& ring,
                                                RingPosition& at, int num_tiles, int group, int thread, int exponent) {
  constexpr int kBytes = tile_bytes(kFormat);
  const int per_stage = stage_tiles<Kind>(kFormat, n);
  TileShare<kFormat> share;
  uint32_t a[2][8], bits[8], multipliers[2];
  int accumulate = 0;
  int to_release = -1;
  int in_stage = 0;
  uint32_t b = 0;
  const std::byte* weights = nullptr;
  wgmma_hold(d);
  for (int k = 0; k < num_tiles; ++k) {
    if (in_stage == 0) {
      const std::byte* stage = ring.stages + at.stage * Kind::kStageBytes;
      weights = stage + per_stage * (n * 128 + group * kBytes);
      b = __shfl_sync(0xFFFFFFFFu, descriptor_low(shared_address(stage)), 0);
      barrier_wait(ring.full(at.stage), at.use);
    }
    share.load(weights, thread);
    share.prepare(0, exponent, bits, multipliers);
    hold_here(bits);
    wgmma_wait<1>();
    share.finish(0, bits, multipliers, a[0]);
    multiply_pair(d, n, a[0], b, accumulate);
    share.prepare(1, exponent, bits, multipliers);
    hold_here(bits);
    wgmma_wait<1>();
    if (to_release >= 0) ring.release(to_release);
    to_release = -1;
    share.finish(1, bits, multipliers, a[1]);
    multiply_pair(d, n, a[1], b + 4, 1);
    accumulate = 1;
    b += n * 8;
    weights += kBytes;
    if (++in_stage == per_stage || k + 1 == num_tiles) {
      in_stage = 0;
      to_release = at.stage;
      at.advance(Kind::kStages);
    }
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
