// Index scores of few tokens, each of which has keys of its own or shares them with few others: 32 heads of 128
// channels on the tensor cores.
//
// One block a multiprocessor takes an equal share of all units of keys (indexer_shares.cuh). Its queries lie in shared
// memory, a few at a time. Each warpgroup converts a tile of 64 keys into registers and multiplies it with one query;
// ReLU, weights and the sum over heads happen in registers.
// Floor: 68 bytes (packed keys) of memory a key of a sequence. Conversion takes longer than that: of the 210
// instructions that a tile costs each warp half are for it, and its lookups take shared memory 128 cycles a tile.
#pragma once

#include "backends/cuda/indexer_ring.cuh"
#include "backends/cuda/launch.cuh"

namespace deepinfer::cuda {

// Steps of a run of one token, two tiles at a time: of four threads that share keys, thread c ends with the score of
// the key that is 4 * (c % 2) after first_key, of tile c / 2.
template <ops::RowType kType, bool kRestricted>
__device__ __forceinline__ void score_alone(const IndexScoreParams& p, FewShared<kType, kRestricted>& s,
                                            FewRing<kType, kRestricted>& ring, int token, int slot, int begin,
                                            int steps) {
  using Shape = FewShape<kType, kRestricted>;
  const uint32_t operand = query_operand(s.queries + slot * kQueryBytes);
  const int c = threadIdx.x % 4;
  const int key = begin + first_key(threadIdx.x % 128) + c % 2 * 4 + c / 2 * kTileKeys;
  uint32_t* values = p.scores.of(p.scores.first + token) + key;
  uint32_t* maxima = p.scores.maxima_of(p.scores.first + token) + key / kMaximaRows;
  const int count = s.share.counts[token];
  int left = count - key, tiled = (count + kTileKeys - 1) / kTileKeys * kTileKeys - key;
  float weights[8];
  load_weights(s.weights[slot][c], weights);
  StoredKeys<kType> stored;
  ring.wait();
  stored.load(ring.keys());
#pragma unroll 1
  for (int i = 0; i < steps; ++i) {
    float sums[2][2];
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      uint32_t a[32];
      float dots[16];
      stored.convert(FewLayout<kType, kRestricted>::kTable, a);
      if (tile == 1) ring.release();
      // Not known to be the same in every step, or its eight forms would all be kept in registers.
      uint32_t here;
      asm volatile("mov.u32 %0, %1;" : "=r"(here) : "r"(operand));
      start_products(dots, a, here);
      // The next keys come meanwhile.
      if (tile == 0) {
        stored.load(ring.keys() + Shape::kTileBytes);
      } else if (i + 1 < steps) {
        ring.wait();
        stored.load(ring.keys());
      }
      wgmma_wait<0>();
      wgmma_hold(dots);
      sums[tile][0] = weigh(dots, 0, weights);
      sums[tile][1] = weigh(dots, 1, weights);
    }
    const float low = exchange(sums[0][0], sums[0][1], c & 1, 1);
    const float high = exchange(sums[1][0], sums[1][1], c & 1, 1);
    const float sum = exchange(low, high, c & 2, 2);
    const uint32_t score = left > 0 ? ordered_score(sum) : 0;
    const uint32_t best = largest_of_eight(score);
    if (tiled > 0) {
      *values = score;
      if (threadIdx.x % 16 == 0 || threadIdx.x % 16 == 2) *maxima = best;
    }
    constexpr int kStride = Shape::kWarpgroups * Shape::kKeys;
    values += kStride;
    maxima += kStride / kMaximaRows;
    left -= kStride;
    tiled -= kStride;
  }
}

// Steps of a run of several tokens: a tile is converted once for all of them. Threads c and c + 2 end with the same.
template <ops::RowType kType, bool kRestricted>
__device__ __forceinline__ void score_together(const IndexScoreParams& p, FewShared<kType, kRestricted>& s,
                                               FewRing<kType, kRestricted>& ring, const IndexRun& run, int slot,
                                               int begin, int steps) {
  using Shape = FewShape<kType, kRestricted>;
  const int c = threadIdx.x % 4, offset = first_key(threadIdx.x % 128) + c % 2 * 4;
#pragma unroll 1
  for (int i = 0; i < steps; ++i, begin += Shape::kWarpgroups * Shape::kKeys) {
    ring.wait();
    const std::byte* keys = ring.keys();
#pragma unroll 1
    for (int tile = 0; tile < 2; ++tile) {
      uint32_t a[32];
      StoredKeys<kType> stored;
      stored.load(keys + tile * Shape::kTileBytes);
      stored.convert(FewLayout<kType, kRestricted>::kTable, a);
      if (tile == 1) ring.release();
      const int key = begin + tile * kTileKeys + offset;
#pragma unroll 1
      for (int j = 0; j < run.num_tokens; ++j) {
        float dots[16], weights[8];
        start_products(dots, a, query_operand(s.queries + (slot + j) * kQueryBytes));
        load_weights(s.weights[slot + j][c], weights);
        wgmma_wait<0>();
        wgmma_hold(dots);
        float sum = exchange(weigh(dots, 0, weights), weigh(dots, 1, weights), c & 1, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const int count = s.share.counts[run.first_token + j];
        const uint32_t score = key < count ? ordered_score(sum) : 0;
        const uint32_t best = largest_of_eight(score);
        const bool exists = key < (count + kTileKeys - 1) / kTileKeys * kTileKeys;
        const int64_t at = p.scores.first + run.first_token + j;
        if (exists && c < 2) p.scores.of(at)[key] = score;
        if (exists && threadIdx.x % 16 == 0) p.scores.maxima_of(at)[key / kMaximaRows] = best;
      }
    }
  }
}

// What a warpgroup does of the block's runs: takes its steps, with as many queries at a time as there is room for.
template <ops::RowType kType, bool kRestricted>
__device__ __forceinline__ void score_runs(const IndexScoreParams& p, FewShared<kType, kRestricted>& s, int num_runs) {
  using Shape = FewShape<kType, kRestricted>;
  FewRing<kType, kRestricted> ring{s, static_cast<int>(threadIdx.x) / 128};
  int step = ring.group, run = 0;
#pragma unroll 1
  while (run < num_runs) {
    int end = run, num_queries = 0;
    for (; end < num_runs && num_queries + s.share.runs[end].num_tokens <= Shape::kQueries; ++end) {
      num_queries += s.share.runs[end].num_tokens;
    }
    if (run > 0) sync_threads(1, Shape::kScorers);
    load_queries<Shape::kScorers, Shape::kByTable>(p, s, num_queries, [&](int slot) {
      int i = run;
      for (; slot >= s.share.runs[i].num_tokens; ++i) slot -= s.share.runs[i].num_tokens;
      return p.scores.first + s.share.runs[i].first_token + slot;
    });
    fence_async_proxy();
    sync_threads(1, Shape::kScorers);
#pragma unroll 1
    for (int slot = 0; run < end; ++run) {
      const IndexRun here = s.share.runs[run];
      const int first = s.share.first_step[run], last = s.share.first_step[run + 1];
      if (step < last) {
        const int steps = (last - step + Shape::kWarpgroups - 1) / Shape::kWarpgroups;
        const int begin = (here.first_unit + step - first) * Shape::kKeys;
        if (here.num_tokens == 1) {
          score_alone(p, s, ring, here.first_token, slot, begin, steps);
        } else {
          score_together(p, s, ring, here, slot, begin, steps);
        }
        step += steps * Shape::kWarpgroups;
      }
      slot += here.num_tokens;
    }
  }
}

template <ops::RowType kType, bool kRestricted>
__global__ void __launch_bounds__(FewShape<kType, kRestricted>::kThreads, 1)
    index_scores_few_kernel(const IndexScoreParams p) {
#ifdef DI_SM90A
  using Shape = FewShape<kType, kRestricted>;
  using Layout = FewLayout<kType, kRestricted>;
  using Shared = FewShared<kType, kRestricted>;
  extern __shared__ __align__(128) std::byte memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  if (shared_address(memory) != Layout::kFirst) __trap();
  if (threadIdx.x < Shape::kDepth * Shape::kWarpgroups) {
    barrier_init(shared_address(&s.full[0][0] + threadIdx.x), 1);
    barrier_init(shared_address(&s.empty[0][0] + threadIdx.x), 4 * kArrivalsOfWarp);
    fence_barrier_init();
  }
  wait_for_kernel_before();
  let_next_kernel_start();
  const int num_runs = find_share<Shape::kKeys, Shape::kThreads>(p, s.share, !kRestricted);
  if (num_runs == 0) return;
  if (threadIdx.x >= Shape::kScorers) {
    if constexpr (Shape::kGivesRegisters) give_registers<32>();
    const int bringer = (static_cast<int>(threadIdx.x) - Shape::kScorers) / 32;
    return bring_keys<kType, kRestricted>(p, s, bringer, s.share.first_step[num_runs]);
  }
  if constexpr (Shape::kGivesRegisters) take_registers<112>();
  if constexpr (Shape::kByTable) {
    // While the first keys are on their way; queries are waited for after it.
    for (int i = threadIdx.x; i < 256 * 32; i += Shape::kScorers) {
      const uint32_t to = Layout::kTable + i / 32 * 256 + i % 32 * 4;
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(StoredKeys<kType>::pair(i / 32)) : "memory");
    }
  }
  score_runs(p, s, num_runs);
#endif
}

}  // namespace deepinfer::cuda
