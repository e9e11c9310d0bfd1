// Index scores of many tokens, as a prompt has: 32 heads of 128 channels on the tensor cores.
//
// A block of threads takes a few neighbouring tokens and a range of keys. Its queries lie in shared memory; neighbours
// with the same block table share their keys. Each warpgroup streams keys through a ring of its own, converts a tile of
// 64 into registers once and multiplies it with one or four queries at a time. ReLU, weights and the sum over heads
// happen in registers.
// Floor: 8192 flops a query and key.
#pragma once

#include "backends/cuda/indexer_products.cuh"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/pipeline.cuh"
#include "backends/cuda/warp_scan.cuh"

namespace deepinfer::cuda {

template <ops::RowType kType>
struct ManyShape {
  using Format = KeyFormat<kType>;
  static constexpr bool kByRow = Format::kSharedBytes != Format::kRowBytes;
  static constexpr int kTileBytes = kTileKeys * Format::kSharedBytes;
  static constexpr int kQueries = 8;  // of a block
  static constexpr int kWarpgroups = kType == ops::RowType::kBf16 ? 4 : 2;
  static constexpr int kBlocksPerSm = 4 / kWarpgroups;  // 128 registers a thread
  static constexpr int kThreads = kWarpgroups * 128;
  static constexpr int kStages = kType == ops::RowType::kE2m1Group32 ? 4 : 2;
  static constexpr int kMaxTiles = 64;  // of a token in a block
};

template <ops::RowType kType>
struct ManyShared {
  using Shape = ManyShape<kType>;
  alignas(128) std::byte queries[Shape::kQueries * kQueryBytes];
  alignas(128) std::byte keys[Shape::kWarpgroups][Shape::kStages][Shape::kTileBytes];
  alignas(16) float weights[Shape::kQueries][4][8];  // half the weights of heads 8g + 2c + e, at [c][2g + e]
  uint64_t full[Shape::kWarpgroups][Shape::kStages];
  const std::byte* places[Shape::kQueries * Shape::kMaxTiles];  // where the keys of each step lie
  std::byte* const* tables[Shape::kQueries];                    // of each token
  uint32_t* values[Shape::kQueries];
  uint32_t* maxima[Shape::kQueries];
  int32_t count[Shape::kQueries];      // scores of each token
  int32_t run_begin[Shape::kQueries];  // runs of tokens that share their keys
  int32_t run_end[Shape::kQueries];
  int32_t run_count[Shape::kQueries];     // the most scores of any of its tokens
  int32_t run_step[Shape::kQueries + 1];  // its first step; a step is a tile of a run
  int32_t num_runs;
};

// Scores of a tile's keys with four queries. Of four threads that share keys, thread c ends with query c's: result[0]
// of the first key, result[1] of the one four further.
__device__ __forceinline__ void score_four(const uint32_t (&a)[32], uint32_t queries, const float (*weights)[4][8],
                                           float (&result)[2]) {
  float dots[64];
  start_products(dots, a, queries);
  wgmma_wait<0>();
  wgmma_hold(dots);
  const int c = threadIdx.x % 4;
  float sums[4][2];
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    float w[8];
    load_weights(weights[m][c], w);
    sums[m][0] = weigh(dots + 16 * m, 0, w);
    sums[m][1] = weigh(dots + 16 * m, 1, w);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float low = exchange(sums[0][half], sums[1][half], c & 1, 1);
    const float high = exchange(sums[2][half], sums[3][half], c & 1, 1);
    result[half] = exchange(low, high, c & 2, 2);
  }
}

// What a thread needs of a query to score keys with it alone: threads c and c + 2 of four end with the score of the key
// that is 4 * c after first_key.
struct OneQuery {
  uint32_t operand;
  const float* weights;
  uint32_t* values;  // of the thread's key of the first tile
  uint32_t* maxima;
  int left;  // keys with scores from there on

  template <typename Shared>
  __device__ __forceinline__ OneQuery(const Shared& s, int query) {
    const int key = first_key(threadIdx.x % 128) + threadIdx.x % 2 * 4;
    operand = query_operand(s.queries + query * kQueryBytes);
    weights = s.weights[query][threadIdx.x % 4];
    values = s.values[query] + key;
    maxima = s.maxima[query] + key / kMaximaRows;
    left = s.count[query] - key;
  }
  // Scores the keys of the tile that begins at score `begin`, and stores the scores and the maxima over 8.
  __device__ __forceinline__ void score(const uint32_t (&a)[32], int begin) const {
    float dots[16];
    start_products(dots, a, operand);
    float w[8];
    load_weights(weights, w);
    wgmma_wait<0>();
    wgmma_hold(dots);
    float sum = exchange(weigh(dots, 0, w), weigh(dots, 1, w), threadIdx.x & 1, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const uint32_t score = begin < left ? ordered_score(sum) : 0;
    const uint32_t best = largest_of_eight(score);
    if (threadIdx.x % 4 < 2) values[begin] = score;
    if (threadIdx.x % 16 == 0) maxima[static_cast<uint32_t>(begin) / kMaximaRows] = best;
  }
};

// Stores what score_four left, of the tile that begins at score `begin`, and the maxima over 8.
template <typename Shared>
__device__ __forceinline__ void store_four(const Shared& s, int query, bool valid, int begin,
                                           const float (&result)[2]) {
  const int i = begin + first_key(threadIdx.x % 128);
  const int count = s.count[query];
  const uint32_t first = i < count ? ordered_score(result[0]) : 0;
  const uint32_t second = i + 4 < count ? ordered_score(result[1]) : 0;
  uint32_t best = max(first, second);
  best = max(best, __shfl_xor_sync(~0u, best, 4));
  best = max(best, __shfl_xor_sync(~0u, best, 8));
  if (!valid) return;
  uint32_t* values = s.values[query] + i;
  values[0] = first;
  values[4] = second;
  if (threadIdx.x % 16 < 4) s.maxima[query][i / kMaximaRows] = best;
}

// Runs and steps of the block. By one warp, a lane a token.
template <int kQueries, typename Shared>
__device__ __forceinline__ void plan_runs(Shared& s, int first_tile, int max_tiles) {
  const int lane = threadIdx.x % 32, i = min(lane, kQueries - 1);
  const int count = lane < kQueries ? s.count[i] : 0;
  const bool follows = lane > 0 && count > 0 && s.count[max(i - 1, 0)] > 0 && s.tables[i] == s.tables[max(i - 1, 0)];
  const uint32_t follow = __ballot_sync(~0u, follows);
  // The run that begins here: as far as tokens follow.
  const int end = lane + __ffs(~(follow >> 1 >> lane));
  int longest = count;
  for (int j = lane + 1; j < min(end, kQueries); ++j) longest = max(longest, s.count[j]);
  int steps = max(0, min(max_tiles, (longest + kTileKeys - 1) / kTileKeys - first_tile));
  if (count == 0 || follows) steps = 0;
  const int sum = inclusive_scan_of_warp(steps, lane);
  const uint32_t begins = __ballot_sync(~0u, steps > 0);
  if (steps > 0) {
    const int run = __popc(begins & ((1u << lane) - 1));
    s.run_begin[run] = lane;
    s.run_end[run] = end;
    s.run_count[run] = longest;
    s.run_step[run] = sum - steps;
  }
  if (lane == 31) {
    s.num_runs = __popc(begins);
    s.run_step[s.num_runs] = sum;
  }
}

// Copies a tile's keys. By the threads of a warp; the first announces the bytes.
template <ops::RowType kType>
__device__ __forceinline__ void copy_tile(const std::byte* from, uint32_t to, uint32_t barrier) {
  using Format = KeyFormat<kType>;
  const int lane = threadIdx.x % 32;
  if (lane == 0) barrier_expect(barrier, kTileKeys * Format::kRowBytes);
  __syncwarp();
  const uint64_t policy = evict_first();
  if constexpr (ManyShape<kType>::kByRow) {
    for (int key = lane; key < kTileKeys; key += 32) {
      copy_bulk(to + key * Format::kSharedBytes, from + key * Format::kRowBytes, Format::kRowBytes, barrier, policy);
    }
  } else {
    if (lane == 0) copy_bulk(to, from, kTileKeys * Format::kRowBytes, barrier, policy);
  }
}

template <ops::RowType kType>
__global__ void __launch_bounds__(ManyShape<kType>::kThreads, ManyShape<kType>::kBlocksPerSm)
    index_scores_many_kernel(const IndexScoreParams p, int tiles_per_block) {
#ifdef DI_SM90A
  using Shape = ManyShape<kType>;
  using Shared = ManyShared<kType>;
  extern __shared__ __align__(128) std::byte memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const int64_t first_token = p.scores.first + int64_t{blockIdx.y} * Shape::kQueries;
  const int num_tokens = static_cast<int>(min(int64_t{Shape::kQueries}, p.scores.first + p.scores.rows - first_token));
  const int first_tile = blockIdx.x * tiles_per_block;
  if (threadIdx.x < Shape::kWarpgroups * Shape::kStages) {
    barrier_init(shared_address(&s.full[0][0] + threadIdx.x), 1);
    fence_barrier_init();
  }
  wait_for_kernel_before();
  let_next_kernel_start();
  if (threadIdx.x < Shape::kQueries) {
    const int i = threadIdx.x;
    const bool exists = i < num_tokens;
    s.count[i] = exists ? static_cast<int32_t>(p.count(first_token + i)) : 0;
    s.tables[i] = exists ? p.choice.blocks[first_token + i] : nullptr;
    s.values[i] = p.scores.of(first_token + i);
    s.maxima[i] = p.scores.maxima_of(first_token + i);
  }
  __syncthreads();
  if (threadIdx.x < 32) plan_runs<Shape::kQueries>(s, first_tile, tiles_per_block);
  __syncthreads();
  const int num_steps = s.run_step[s.num_runs];
  if (num_steps == 0) return;
  for (int step = threadIdx.x, run = 0; step < num_steps; step += Shape::kThreads) {
    while (step >= s.run_step[run + 1]) ++run;
    const int first = s.run_begin[run];
    s.places[step] = find_place<KeyFormat<kType>::kRowBytes, kTileKeys>(
        p, first_token + first, s.tables[first], s.run_count[run], first_tile + step - s.run_step[run]);
  }
  __syncthreads();

  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4;
  const int filler = (group + blockIdx.x) % 4;  // of a warpgroup's warps, which have a scheduler each
  const auto fill = [&](int step, int stage) {
    copy_tile<kType>(s.places[step], shared_address(s.keys[group][stage]), shared_address(&s.full[group][stage]));
  };
  if (warp == filler) {
    for (int i = 0; i < Shape::kStages; ++i) {
      const int step = group + i * Shape::kWarpgroups;
      if (step < num_steps) fill(step, i);
    }
  }
  load_queries<Shape::kThreads, false>(p, s, num_tokens, [&](int i) { return first_token + i; });
  fence_async_proxy();
  __syncthreads();

  RingPosition ring;
  int step = group;
  for (int run = 0; run < s.num_runs; ++run) {
    const int last_step = s.run_step[run + 1];
    if (step >= last_step) continue;
    const int first_query = s.run_begin[run], end = s.run_end[run];
    int begin = (first_tile + step - s.run_step[run]) * kTileKeys;
#pragma unroll 1
    for (; step < last_step; step += Shape::kWarpgroups, begin += Shape::kWarpgroups * kTileKeys) {
      uint32_t a[32];
      barrier_wait(shared_address(&s.full[group][ring.stage]), ring.use);
      load_keys<kType>(s.keys[group][ring.stage], a);
      sync_threads(1 + group, 128);
      const int next = step + Shape::kStages * Shape::kWarpgroups;
      if (warp == filler && next < num_steps) fill(next, ring.stage);
      ring.advance(Shape::kStages);
      if (end - first_query == 1) {
        OneQuery(s, first_query).score(a, begin);
      } else {
#pragma unroll 1
        for (int query = first_query; query < end; query += 4) {
          // Neighbours that are not of the run take part, and their results are dropped.
          const int four = min(query, Shape::kQueries - 4), mine = four + threadIdx.x % 4;
          float result[2];
          score_four(a, query_operand(s.queries + four * kQueryBytes), s.weights + four, result);
          store_four(s, mine, mine >= query && mine < end, begin, result);
        }
      }
    }
  }
#endif
}

}  // namespace deepinfer::cuda
