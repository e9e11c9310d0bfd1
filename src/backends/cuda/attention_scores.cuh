// The scores' warpgroup of the tiled kernel (attention_pipeline.cuh): q times keys, weights, their sums. Behind the
// product it does what can wait: it finds rows of blocks to come and adds up the weights of the block before.
#pragma once

#include "backends/cuda/attention_finder.cuh"

namespace deepinfer::cuda {

// A thread's part of a token's q on its way to the tiles: 16-byte units of column t % 8 of each tile, and the angles of
// those units of the last tile.
struct QueryLoad {
  float cosine[4], sine[4];

  __device__ void start(const AttentionParams& p, PipelineShared& s, int token) {
    const int t = threadIdx.x % kWarpgroup, unit = t % 8;
    const std::byte* q = p.q + (token * p.q_stride + t / 8 * kDim) * 2 + unit * 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int tile = 0; tile < 8; ++tile) {
        copy_unit(unit_address(shared_address(s.q) + tile * kTileBytes, i * 16 + t / 8, unit),
                  q + i * 16 * kDim * 2 + tile * 128);
      }
    }
    if (p.num_pairs == 0) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      cosine[i] = p.cosine[token * p.cosine_stride + 4 * unit + i];
      sine[i] = p.sine[token * p.sine_stride + 4 * unit + i];
    }
  }
  // Then the threads of the warpgroup synchronise.
  __device__ void finish(const AttentionParams& p, PipelineShared& s) {
    const int t = threadIdx.x % kWarpgroup, unit = t % 8;
    wait_for_copies();
    if (p.num_pairs != 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        rotate_unit(unit_address(shared_address(s.q) + 7 * kTileBytes, i * 16 + t / 8, unit), cosine, sine);
      }
    }
    fence_async_proxy();
  }
};

// Brings a token's q, 64 KB, nearer.
__device__ __forceinline__ void prefetch_query(const AttentionParams& p, int token) {
  const std::byte* q = p.q + token * p.q_stride * 2 + threadIdx.x % kWarpgroup * 128;
#pragma unroll
  for (int i = 0; i < 4; ++i) asm volatile("prefetch.global.L2 [%0];" ::"l"(q + i * kWarpgroup * 128) : "memory");
}

// Sum over the row of a block's weights, of which the four threads of a row hold columns 8j + 2c and 8j + 2c + 1 in
// w[4j], w[4j + 1]: first each 16 keys, then the four sums. For rows 0 and 1 of the thread.
__device__ __forceinline__ void row_sums(const float (&w)[32], int lane, float (&sum)[2]) {
  // Threads exchange what the other keeps: two rounds leave the sum of piece `lane % 4` in each.
  const bool odd = lane & 1, upper = lane & 2;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float piece[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = 8 * i + 2 * r;
      piece[i] = thread_sum(w[at], w[at + 1], w[at + 4], w[at + 5]);
    }
    const float low = (odd ? piece[1] : piece[0]) + __shfl_xor_sync(~0u, odd ? piece[0] : piece[1], 1);
    const float high = (odd ? piece[3] : piece[2]) + __shfl_xor_sync(~0u, odd ? piece[2] : piece[3], 1);
    sum[r] = (upper ? high : low) + __shfl_xor_sync(~0u, upper ? low : high, 2);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
#pragma unroll
  for (int r = 0; r < 2; ++r) sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
}

// Four 8 x 8 matrices of BF16, one 32-bit word of each a thread, to rows of 16 bytes whose addresses the threads give.
__device__ __forceinline__ void store_matrices(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a), "r"(b), "r"(c),
               "r"(d)
               : "memory");
}

// The heads that a thread has scores of, and what it keeps of the blocks before.
template <RowKind kWindow>
struct Softmax {
  static constexpr float kScale = score_scale(kWindow);

  int lane, first_head;  // and first_head + 8
  float largest[2], total[2], decay[2];

  __device__ Softmax(int lane_of_warp, int warp) : lane(lane_of_warp), first_head(16 * warp + lane_of_warp / 4) {}
  __device__ __forceinline__ void restart() {
    largest[0] = largest[1] = kNoScore;
    total[0] = total[1] = 0;
  }
  // From scores to weights.
  __device__ __forceinline__ void weigh(float (&w)[32]) {
    float most[2] = {largest[0], largest[1]};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float m[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 8 * i + 2 * r;
        m[i] = fmaxf(fmaxf(w[at], w[at + 1]), fmaxf(w[at + 4], w[at + 5]));
      }
      most[r] = fmaxf(most[r], fmaxf(fmaxf(m[0], m[1]), fmaxf(m[2], m[3])));
    }
#pragma unroll
    for (int step = 1; step <= 2; ++step) {
#pragma unroll
      for (int r = 0; r < 2; ++r) most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], step));
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      decay[r] = exp2_fast((largest[r] - most[r]) * kScale);
      largest[r] = most[r];
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) w[4 * j + e] = weight_of(w[4 * j + e], largest[e / 2], kScale);
    }
  }
  __device__ __forceinline__ void store(PipelineShared& s, int buffer, const float (&w)[32]) const {
    const uint32_t tile = shared_address(s.weights[buffer]);
    const int row = first_head / 16 * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      store_matrices(unit_address(tile, row, j + lane / 16), pack_bf16(w[4 * j], w[4 * j + 1]),
                     pack_bf16(w[4 * j + 2], w[4 * j + 3]), pack_bf16(w[4 * j + 4], w[4 * j + 5]),
                     pack_bf16(w[4 * j + 6], w[4 * j + 7]));
    }
    if (lane % 4 == 0) {
      s.decay[buffer][first_head] = decay[0];
      s.decay[buffer][first_head + 8] = decay[1];
    }
  }
  __device__ __forceinline__ void add(const float (&w)[32]) {
    float sum[2];
    row_sums(w, lane, sum);
    total[0] = add_block(total[0], decay[0], sum[0]);
    total[1] = add_block(total[1], decay[1], sum[1]);
  }
  __device__ __forceinline__ void store_factor(PipelineShared& s, int buffer, const float* sink) const {
    if (lane % 4 != 0) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      s.factor[buffer][first_head + 8 * r] = head_factor<kWindow>(total[r], largest[r], sink[first_head + 8 * r]);
    }
  }
};

// Leaves out the keys of a block from `count` on.
__device__ __forceinline__ void mask_scores(float (&w)[32], int count, int lane) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (8 * j + 2 * (lane % 4) + e % 2 >= count) w[4 * j + e] = -INFINITY;
    }
  }
}

template <RowKind kWindow, RowKind kCompressed>
__device__ void weigh_keys(const AttentionParams& p, PipelineShared& s) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const uint32_t q = shared_address(s.q);
  Work work = next_work(p, blockIdx.x), next;
  QueryLoad query;
  if (work.num_blocks > 0) query.start(p, s, work.token);
  announce_first_rows(s);
  RowFinder<kWindow, kCompressed> finder(p, threadIdx.x % kWarpgroup);
  Softmax<kWindow> softmax(lane, warp);
  float before[32];  // the weights of the block before, not yet in the total
  for (int n = 0; work.num_blocks > 0; work = next) {
    query.finish(p, s);
    sync_threads(kScoreSync, kWarpgroup);
    softmax.restart();
    for (int block = 0; block < work.num_blocks; ++block, ++n) {
      const int buffer = n & 1;
      const uint32_t parity = n >> 1 & 1, keys = shared_address(s.keys[buffer]);
      const bool last = block + 1 == work.num_blocks;
      float w[32];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        barrier_wait(shared_address(&s.keys_full[buffer][half]), parity);
        fence_async_proxy();
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          const int tile = half * 4 + i / 4, step = i % 4;
          mma_scores(w, columns_descriptor(q + tile * kTileBytes) + 2 * step,
                     columns_descriptor(keys + tile * kTileBytes) + 2 * step, half + i > 0);
        }
      }
      wgmma_commit();
      find_rows(finder, s, n + kFirstBlocks);
      if (block == 0) {
        next = next_work(p, work.token + gridDim.x);
        if (next.num_blocks > 0) prefetch_query(p, next.token);
      } else {
        softmax.add(before);
      }
      wgmma_wait<0>();
      wgmma_hold(w);
      if (last && next.num_blocks > 0) {
        sync_threads(kScoreSync, kWarpgroup);  // no warp's product reads this token's q any more
        query.start(p, s, next.token);
      }
      const int count = work.keys.num_keys - block * kKeysPerBlock;
      if (count < kKeysPerBlock) mask_scores(w, count, lane);
      softmax.weigh(w);
      softmax.store(s, buffer, w);
      if (last) {
        softmax.add(w);
        softmax.store_factor(s, buffer, p.sink);
      }
      warp_arrive(shared_address(&s.weights_full[buffer]));
#pragma unroll
      for (int i = 0; i < 32; ++i) before[i] = w[i];
    }
  }
}

}  // namespace deepinfer::cuda
