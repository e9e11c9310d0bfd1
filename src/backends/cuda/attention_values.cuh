// The values' warpgroups of the tiled kernel (attention_pipeline.cuh): each sums 256 / kParts channels, and fills the
// tiles of 256 for blocks to come.
#pragma once

#include "backends/cuda/attention_fill.cuh"

namespace deepinfer::cuda {

template <RowKind kWindow, int kParts>
__device__ void sum_values(const AttentionParams& p, PipelineShared& s, int half) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, c = lane % 4;
  const int heads[2] = {16 * warp + lane / 4, 16 * warp + lane / 4 + 8};
  TileFiller<kWindow> filler(s, half);
#pragma unroll 1
  for (int n = 0; n < 2; ++n) filler.fill(s, n);
  constexpr int kSums = 128 / kParts;
  const int first_tile = kParts == 1 ? half * 4 : static_cast<int>(blockIdx.y) * 4 + half * 2;  // that is summed
  float sums[kSums];
  Work work = next_work(p, blockIdx.x), next;
  for (int n = 0; work.num_blocks > 0; work = next) {
    float factor[2] = {0, 0};
    for (int block = 0; block < work.num_blocks; ++block, ++n) {
      const int buffer = n & 1;
      const uint32_t parity = n >> 1 & 1;
      barrier_wait(shared_address(&s.weights_full[buffer]), parity);
      const float decay0 = s.decay[buffer][heads[0]], decay1 = s.decay[buffer][heads[1]];
      if (block > 0 && __any_sync(~0u, decay0 != 1.0f)) {
#pragma unroll
        for (int j = 0; j < kSums / 4; ++j) sums[4 * j] *= decay0, sums[4 * j + 1] *= decay0;
      }
      if (block > 0 && __any_sync(~0u, decay1 != 1.0f)) {
#pragma unroll
        for (int j = 0; j < kSums / 4; ++j) sums[4 * j + 2] *= decay1, sums[4 * j + 3] *= decay1;
      }
      fence_async_proxy();
      const uint64_t weights = columns_descriptor(shared_address(s.weights[buffer]));
      const uint64_t values = rows_descriptor(shared_address(s.keys[buffer]) + first_tile * kTileBytes);
      wgmma_hold(sums);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        mma_values(sums, weights + 2 * step, values + 128 * step, block + step > 0);
      }
      wgmma_commit();
      if (block == 0) next = next_work(p, work.token + gridDim.x);
      if (block + 1 == work.num_blocks) {
        factor[0] = s.factor[buffer][heads[0]];
        factor[1] = s.factor[buffer][heads[1]];
      }
      wgmma_wait<0>();
      wgmma_hold(sums);
      // No warp's product reads the tiles any more.
      if (kParts == 1) {
        sync_threads(kValueSync + half, kWarpgroup);
      } else {
        sync_threads(kValueSync, 2 * kWarpgroup);
      }
      filler.fill(s, n + 2);
    }
    const auto turn = [&](uint32_t pair, int j) {
      constexpr int kStraight = 32 / kParts - 8;  // the last tile is rotated
      if (j < kStraight || first_tile + 4 / kParts < 8 || p.num_pairs == 0) return pair;
      const int angle = 4 * (j - kStraight) + c;
      return rotate(pair, p.cosine[work.token * p.cosine_stride + angle], -p.sine[work.token * p.sine_stride + angle]);
    };
    write_out(p, work.token, first_tile * 64, sums, factor, heads, c, turn);
  }
}

}  // namespace deepinfer::cuda
