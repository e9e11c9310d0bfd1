// The values' warpgroups of the tiled kernel (attention_pipeline.cuh): sums of 256 channels, and the tiles of these
// channels for blocks to come.
#pragma once

#include "backends/cuda/attention_fill.cuh"

namespace deepinfer::cuda {

template <RowKind kWindow>
__device__ void sum_values(const AttentionParams& p, PipelineShared& s, int half) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, c = lane % 4;
  const int heads[2] = {16 * warp + lane / 4, 16 * warp + lane / 4 + 8};
  TileFiller<kWindow> filler(s, half);
#pragma unroll 1
  for (int n = 0; n < 2; ++n) filler.fill(s, n);
  float sums[128];
  Work work = next_work(p, blockIdx.x), next;
  for (int n = 0; work.num_blocks > 0; work = next) {
    float factor[2] = {0, 0};
    for (int block = 0; block < work.num_blocks; ++block, ++n) {
      const int buffer = n & 1;
      const uint32_t parity = n >> 1 & 1;
      barrier_wait(shared_address(&s.weights_full[buffer]), parity);
      const float decay0 = s.decay[buffer][heads[0]], decay1 = s.decay[buffer][heads[1]];
      if (block > 0 && __any_sync(~0u, decay0 != 1.0f || decay1 != 1.0f)) {
#pragma unroll
        for (int j = 0; j < 32; ++j) {
          sums[4 * j] *= decay0, sums[4 * j + 1] *= decay0;
          sums[4 * j + 2] *= decay1, sums[4 * j + 3] *= decay1;
        }
      }
      fence_async_proxy();
      const uint64_t weights = columns_descriptor(shared_address(s.weights[buffer]));
      const uint64_t values = rows_descriptor(shared_address(s.keys[buffer]) + half * kHalfBytes);
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
      sync_threads(kValueSync + half, kWarpgroup);  // no warp's product reads the tiles any more
      filler.fill(s, n + 2);
    }
    const auto turn = [&](uint32_t pair, int j) {
      if (half == 0 || j < 24 || p.num_pairs == 0) return pair;
      const int angle = 4 * (j - 24) + c;
      return rotate(pair, p.cosine[work.token * p.cosine_stride + angle], -p.sine[work.token * p.sine_stride + angle]);
    };
    write_out(p, work.token, half * 256, sums, factor, heads, c, turn);
  }
}

}  // namespace deepinfer::cuda
