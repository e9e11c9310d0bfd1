// The main loop for experts that have many rows each: 256 rows of weights (four warpgroups of 64) times the rows of an
// item, 8 ... kMost of them. The order of sums is that of gemm_mainloop.cuh: from zero, 16 columns an instruction,
// columns ascending.
//
// Four warpgroups hide each other's conversions: with two the tensor cores idle for half of the time at 64 rows. They
// also share the rows of a stage, which otherwise are more traffic than the L2 delivers.
//
// Shared memory of a stage: the slab of rows, 64 columns each, then every warpgroup's tile of weights.
#pragma once

#include "backends/cuda/experts_operands.cuh"
#include "backends/cuda/gemm_epilogue.cuh"
#include "backends/cuda/pipeline.cuh"

namespace deepinfer::cuda {

struct ManyRows {
  static constexpr int kGroups = 4, kConsumers = kGroups * 128;
  static constexpr int kThreads = kConsumers + 128;  // registers move between warpgroups
  static constexpr int kMost = 128;                  // rows of an item
  static constexpr int kStages = 5;
  static constexpr int kStageBytes = (96 * 128 + kGroups * 4112 + 1023) / 1024 * 1024;
  static_assert(kMost * 128 + kGroups * 2176 <= kStageBytes);
  static constexpr int kStagingBytes = kMost * 128;  // of a warpgroup
  static constexpr int kSharedBytes = kStages * (kStageBytes + 20) + kGroups * kStagingBytes;
  static_assert(kSharedBytes <= 227 * 1024);
};

// A stage is free once all consumer warps have handed it back.
struct ManyRing {
  std::byte* stages;    // at a multiple of 1024
  uint32_t barriers;    // 16 bytes a stage
  volatile int* items;  // [stages] the item that begins in a stage, or that there is none

  __device__ __forceinline__ uint32_t full(int stage) const { return barriers + 8 * stage; }
  __device__ __forceinline__ uint32_t empty(int stage) const { return barriers + 8 * (ManyRows::kStages + stage); }
  // By one thread, before the block synchronises.
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < ManyRows::kStages; ++i) {
      barrier_init(full(i), 1);
      barrier_init(empty(i), ManyRows::kConsumers / 32 * kArrivalsOfWarp);
    }
    fence_barrier_init();
  }
  // By every thread of a consumer warp, once it has read a stage.
  __device__ __forceinline__ void release(int stage) const { warp_arrive(empty(stage)); }
};

// d = the sums over `num_tiles` column tiles, the first of which comes into stage `at`, for `n` rows. One warpgroup;
// `weights` is where it finds its own in stage 0, `thread` is 0 ... 127 within it.
__device__ __forceinline__ void multiply_many(float (&d)[ManyRows::kMost / 2], int n, bool fp4,
                                              const std::byte* weights, const ManyRing& ring, RingPosition& at,
                                              int num_tiles, int thread, int exponent) {
  EitherShare share;
  uint32_t a[2][8];
  int to_release = -1;  // a stage is read until the instructions after the next ones are known to be complete
  int accumulate = 0;
  wgmma_hold(d);
  const uint32_t first = wgmma_descriptor_low(shared_address(ring.stages));
#pragma unroll 1
  for (int k = 0; k < num_tiles; ++k) {
    const int stage = at.stage;
    const std::byte* tile = weights + stage * ManyRows::kStageBytes;
    // Uniform for the compiler too.
    const uint32_t b = __shfl_sync(0xFFFFFFFFu, first + stage * (ManyRows::kStageBytes / 16), 0);
    barrier_wait(ring.full(stage), at.use);
    wgmma_wait<1>();
    share.first(fp4, tile, thread, exponent, a[0]);
    multiply_any<1, ManyRows::kMost / kRowUnit>(d, n, a[0], b, accumulate);
    accumulate = 1;
    at.advance(ManyRows::kStages);
    wgmma_wait<1>();
    if (to_release >= 0) ring.release(to_release);
    to_release = stage;
    share.second(fp4, tile, thread, exponent, a[1]);
    multiply_any<1, ManyRows::kMost / kRowUnit>(d, n, a[1], b + 4, 1);
  }
  wgmma_wait<0>();
  wgmma_hold(d);
  ring.release(to_release);
}

// The part of a warpgroup whose rows lie beyond the matrix: hands stages back unread.
__device__ __forceinline__ void skip_many(const ManyRing& ring, RingPosition& at, int num_tiles) {
  for (int k = 0; k < num_tiles; ++k) {
    barrier_wait(ring.full(at.stage), at.use);
    ring.release(at.stage);
    at.advance(ManyRows::kStages);
  }
}

// The sums of `num_rows` rows, rounded to BF16: a row's 64 outputs in 128 bytes whose 16-byte units stand in the order
// of unit ^ (row % 8).
template <int kSums>
__device__ __forceinline__ void stage_rounded(uint32_t staging, const float (&d)[kSums], int num_rows, float scale,
                                              int thread) {
  const int lane = thread % 32, row = lane % 8 + lane / 16 * 8, unit = thread / 32 * 2 + lane / 8 % 2;
  const uint32_t to = staging + row * 128 + ((unit ^ (row % 8)) << 4);
#pragma unroll
  for (int j = 0; j < kSums / 8; ++j) {
    if (16 * j >= num_rows) break;
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = pack_bf16(d[8 * j + 2 * i] * scale, d[8 * j + 2 * i + 1] * scale);
    store_transposed(to + j * 16 * 128, pairs);
  }
}
__device__ __forceinline__ uint4 staged(const std::byte* staging, int row, int unit) {
  return *reinterpret_cast<const uint4*>(staging + row * 128 + ((unit ^ row % 8) << 4));
}

}  // namespace deepinfer::cuda
