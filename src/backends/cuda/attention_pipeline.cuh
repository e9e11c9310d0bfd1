// The warpgroups of the tiled kernel and what they share.
//
// Two blocks of 64 keys are in shared memory. The scores' warpgroup multiplies q with a block's keys, finds the rows of
// blocks to come and makes weights. Two warpgroups sum the values of 256 channels each, and then turn the rows of the
// block after the next into the tiles that they alone have read last.
#pragma once

#include "backends/cuda/attention_mma.cuh"
#include "backends/cuda/attention_steps.cuh"
#include "backends/cuda/pipeline.cuh"

namespace deepinfer::cuda {

inline constexpr int kWarpgroup = 128;
inline constexpr int kMatrixBytes = 8 * kTileBytes;  // 64 rows of 512 columns
inline constexpr int kHalfBytes = kMatrixBytes / 2;
inline constexpr int kRowRing = 4;
inline constexpr int kScoreSync = 1, kValueSync = 2;  // named barriers; one more for the right values

// The rows of a block of keys. An address is a multiple of 16; below it stands the RowKind.
using RowList = uint64_t[kKeysPerBlock];

struct PipelineShared {
  std::byte q[kMatrixBytes];
  std::byte keys[2][kMatrixBytes];
  std::byte weights[2][kTileBytes];
  RowList rows[kRowRing];
  float decay[2][kHeads];    // of what was summed before the block
  float factor[2][kHeads];   // with a token's last block: 1 / sum of the weights
  uint64_t keys_full[2][2];  // [buffer][half]
  uint64_t weights_full[2];
  uint64_t rows_full[kRowRing], rows_empty[kRowRing];
};

// keys_arrivals: when a half of a buffer is filled. Then the threads of the block synchronise.
__device__ inline void init_barriers(PipelineShared& s, int keys_arrivals) {
  for (int buffer = 0; buffer < 2; ++buffer) {
    for (int half = 0; half < 2; ++half) {
      barrier_init(shared_address(&s.keys_full[buffer][half]), keys_arrivals);
    }
    barrier_init(shared_address(&s.weights_full[buffer]), 4 * kArrivalsOfWarp);
  }
  for (int slot = 0; slot < kRowRing; ++slot) {
    barrier_init(shared_address(&s.rows_full[slot]), 4 * kArrivalsOfWarp);
    barrier_init(shared_address(&s.rows_empty[slot]), 2 * 4 * kArrivalsOfWarp);
  }
  fence_barrier_init();
}

}  // namespace deepinfer::cuda
