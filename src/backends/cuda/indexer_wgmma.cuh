// Index scores of 32 heads of 128 channels on the tensor cores: BF16 products, fp32 sums.
//
// A block of threads takes a few neighbouring tokens and a range of keys. Its queries lie in shared memory; neighbours
// with the same block table share their keys. Each warpgroup streams keys through a ring of its own, converts a tile of
// 64 into registers once and multiplies it with one or four queries at a time. ReLU, weights and the sum
// over heads happen in registers: a thread adds 8 heads in order, two exchanges add four threads, the same for one
// query as for four, so a score depends on its query and key alone.
// Floor: 68 bytes (packed keys) of memory a key of a sequence, 8192 flops a query and key.
#pragma once

#include "backends/cuda/indexer_keys.cuh"
#include "backends/cuda/indexer_rows.cuh"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/pipeline.cuh"
#include "backends/cuda/wgmma.cuh"

namespace deepinfer::cuda {

inline constexpr int kIndexHeads = 32;
inline constexpr int kQueryBytes = kIndexHeads * kKeyChannels * 2;

// kFew: few tokens, which share keys with few others; small blocks keep much memory in flight. kMany: a prompt's.
// kCandidates: a token has a list of its own.
enum class IndexMode { kFew, kMany, kCandidates };

// A tile's keys lie in one place, those of candidates in blocks of 8.
template <ops::RowType kType, IndexMode kMode>
struct IndexTile {
  using Format = KeyFormat<kType>;
  static constexpr int kKeysPerPlace = kMode == IndexMode::kCandidates ? 8 : kTileKeys;
  static constexpr int kPlaces = kTileKeys / kKeysPerPlace;
  static constexpr bool kByRow = Format::kSharedBytes != Format::kRowBytes;
  static constexpr int kSharedBytes = kTileKeys * Format::kSharedBytes;
};

template <ops::RowType kType, IndexMode kMode>
struct IndexShape {
  static constexpr bool kWide = kType == ops::RowType::kBf16;
  static constexpr int kQueries = kMode == IndexMode::kMany ? 8 : kMode == IndexMode::kFew ? 4 : 1;  // of a block
  static constexpr int kWarpgroups = kMode == IndexMode::kMany && kWide ? 4 : 2;
  static constexpr int kBlocksPerSm = 4 / kWarpgroups;  // 128 registers a thread
  static constexpr int kThreads = kWarpgroups * 128;
  static constexpr int kStages = kType == ops::RowType::kE2m1Group32 ? 4 : 2;
  static constexpr int kMaxTiles = 64;  // of a token in a block
  static constexpr int kMaxPlaces = kQueries * kMaxTiles * IndexTile<kType, kMode>::kPlaces;
};

template <ops::RowType kType, IndexMode kMode>
struct IndexShared {
  using Shape = IndexShape<kType, kMode>;
  alignas(128) std::byte queries[Shape::kQueries * kQueryBytes];
  alignas(128) std::byte keys[Shape::kWarpgroups][Shape::kStages][IndexTile<kType, kMode>::kSharedBytes];
  alignas(16) float weights[Shape::kQueries][4][8];  // half the weights of heads 8g + 2c + e, at [c][2g + e]
  uint64_t full[Shape::kWarpgroups][Shape::kStages];
  const std::byte* places[Shape::kMaxPlaces];  // where the keys of each step lie
  std::byte* const* tables[Shape::kQueries];   // of each token
  uint32_t* values[Shape::kQueries];
  uint32_t* maxima[Shape::kQueries];
  int32_t count[Shape::kQueries];      // scores of each token
  int32_t run_begin[Shape::kQueries];  // runs of tokens that share their keys
  int32_t run_end[Shape::kQueries];
  int32_t run_count[Shape::kQueries];     // the most scores of any of its tokens
  int32_t run_step[Shape::kQueries + 1];  // its first step; a step is a tile of a run
  int32_t num_runs;
};

// B operand without swizzle: 8 heads x 8 columns are 128 contiguous bytes, the next 8 columns follow, then 8 heads.
// The lower word, which every thread of a warp gets from the first: the instruction takes it from a uniform register.
__device__ __forceinline__ uint32_t query_operand(const std::byte* queries) {
  return __shfl_sync(~0u, (shared_address(queries) & 0x3ffff) >> 4 | 128u >> 4 << 16, 0);
}

// d = the 8 instructions of a tile's dot products with a query or four.
template <int kCount>
__device__ __forceinline__ void multiply(float (&d)[kCount], const uint32_t (&a)[32], uint32_t queries) {
  wgmma_fence();
#pragma unroll
  for (int s = 0; s < 8; ++s) {
    Wgmma<kCount * 2>::mma(d, a + 4 * s, uint64_t{2048 >> 4} << 32 | (queries + 16 * s), s > 0);
  }
  wgmma_commit();
}

// Brings the queries of `num_tokens` tokens and half their weights to shared memory.
template <int kThreads, typename Shared>
__device__ __forceinline__ void load_queries(const IndexScoreParams& p, Shared& s, int64_t first_token,
                                             int num_tokens) {
  constexpr int kGroups = kIndexHeads / 8, kWarps = kThreads / 32;
  const int c = threadIdx.x % 4, h = threadIdx.x % 32 / 4;
#pragma unroll 2
  for (int i = threadIdx.x / 32; i < num_tokens * kGroups; i += kWarps) {
    const int token = i / kGroups, head = i % kGroups * 8 + h;
    const auto* q = reinterpret_cast<const uint16_t*>(p.q.data) + (first_token + token) * p.q.stride;
    uint4 from[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) from[j] = *reinterpret_cast<const uint4*>(q + head * kKeyChannels + 32 * c + 8 * j);
    auto* to = reinterpret_cast<uint32_t*>(s.queries + i * 2048 + h * 16 + c * 4);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      to[(4 * j) * 32] = __byte_perm(from[j].x, from[j].z, 0x5410);
      to[(4 * j + 1) * 32] = __byte_perm(from[j].x, from[j].z, 0x7632);
      to[(4 * j + 2) * 32] = __byte_perm(from[j].y, from[j].w, 0x5410);
      to[(4 * j + 3) * 32] = __byte_perm(from[j].y, from[j].w, 0x7632);
    }
  }
  for (int i = threadIdx.x; i < num_tokens * kIndexHeads; i += kThreads) {
    const int head = i % kIndexHeads;
    s.weights[i / kIndexHeads][head % 8 / 2][head / 8 * 2 + head % 2] =
        0.5f * load_element(p.head_weights, first_token + i / kIndexHeads, head);
  }
}

// sum over the thread's 8 heads of relu(dot) * weight, for the row of `half`. relu(x) is (x + |x|) / 2, exactly.
__device__ __forceinline__ float weigh(const float* dots, int half, const float (&weights)[8]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float dot = dots[i / 2 * 4 + half * 2 + i % 2];
    sum = fmaf(dot + fabsf(dot), weights[i], sum);
  }
  return sum;
}

__device__ __forceinline__ void load_weights(const float* from, float (&weights)[8]) {
  const float4 a = *reinterpret_cast<const float4*>(from), b = *reinterpret_cast<const float4*>(from + 4);
  weights[0] = a.x, weights[1] = a.y, weights[2] = a.z, weights[3] = a.w;
  weights[4] = b.x, weights[5] = b.y, weights[6] = b.z, weights[7] = b.w;
}

// Of two sums, the one that the thread keeps, plus what the thread `distance` further kept of it.
__device__ __forceinline__ float exchange(float even, float odd, bool is_odd, int distance) {
  return (is_odd ? odd : even) + __shfl_xor_sync(~0u, is_odd ? even : odd, distance);
}

// Scores of a tile's keys with four queries. Of four threads that share keys, thread c ends with query c's: result[0]
// of the first key, result[1] of the one four further.
__device__ __forceinline__ void score_four(const uint32_t (&a)[32], uint32_t queries, const float (*weights)[4][8],
                                           float (&result)[2]) {
  float dots[64];
  multiply(dots, a, queries);
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
    multiply(dots, a, operand);
    float w[8];
    load_weights(weights, w);
    wgmma_wait<0>();
    wgmma_hold(dots);
    float sum = exchange(weigh(dots, 0, w), weigh(dots, 1, w), threadIdx.x & 1, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const uint32_t score = begin < left ? ordered_score(sum) : 0;
    uint32_t best = max(score, __shfl_xor_sync(~0u, score, 1));
    best = max(best, __shfl_xor_sync(~0u, best, 4));
    best = max(best, __shfl_xor_sync(~0u, best, 8));
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
  int sum = steps;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(~0u, sum, d);
    if (lane >= d) sum += other;
  }
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

// Where the keys with scores place * kKeysPerPlace and on lie. Beyond the last key: where that lies.
template <ops::RowType kType, IndexMode kMode>
__device__ __forceinline__ const std::byte* find_place(const IndexScoreParams& p, int64_t token,
                                                       std::byte* const* table, int count, int place) {
  using Tile = IndexTile<kType, kMode>;
  const int last = (count - 1) / Tile::kKeysPerPlace;
  const int64_t row = p.choice.row(token, int64_t{min(place, last)} * Tile::kKeysPerPlace);
  return table[row >> p.keys.block_shift] + p.keys.offset +
         (row & ((int64_t{1} << p.keys.block_shift) - 1)) * KeyFormat<kType>::kRowBytes;
}

// Copies a tile's keys. By the threads of a warp; the first announces the bytes.
template <ops::RowType kType, IndexMode kMode>
__device__ __forceinline__ void copy_tile(const std::byte* const* places, uint32_t to, uint32_t barrier) {
  using Tile = IndexTile<kType, kMode>;
  using Format = KeyFormat<kType>;
  const int lane = threadIdx.x % 32;
  if (lane == 0) barrier_expect(barrier, kTileKeys * Format::kRowBytes);
  __syncwarp();
  const uint64_t policy = evict_first();
  if constexpr (Tile::kByRow) {
    for (int key = lane; key < kTileKeys; key += 32) {
      copy_bulk(to + key * Format::kSharedBytes,
                places[key / Tile::kKeysPerPlace] + key % Tile::kKeysPerPlace * Format::kRowBytes, Format::kRowBytes,
                barrier, policy);
    }
  } else {
    constexpr int kBytes = Tile::kKeysPerPlace * Format::kRowBytes;
    if (lane < Tile::kPlaces) copy_bulk(to + lane * kBytes, places[lane], kBytes, barrier, policy);
  }
}

template <ops::RowType kType, IndexMode kMode>
__global__ void __launch_bounds__(IndexShape<kType, kMode>::kThreads, IndexShape<kType, kMode>::kBlocksPerSm)
    index_scores_wgmma_kernel(const IndexScoreParams p, int tiles_per_block) {
#ifdef DI_SM90A
  using Shape = IndexShape<kType, kMode>;
  using Tile = IndexTile<kType, kMode>;
  using Shared = IndexShared<kType, kMode>;
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
  for (int i = threadIdx.x, run = 0; i < num_steps * Tile::kPlaces; i += Shape::kThreads) {
    const int step = i / Tile::kPlaces;
    while (step >= s.run_step[run + 1]) ++run;
    const int first = s.run_begin[run];
    s.places[i] = find_place<kType, kMode>(p, first_token + first, s.tables[first], s.run_count[run],
                                           (first_tile + step - s.run_step[run]) * Tile::kPlaces + i % Tile::kPlaces);
  }
  __syncthreads();

  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4;
  const int filler = (group + blockIdx.x) % 4;  // of a warpgroup's warps, which have a scheduler each
  const auto fill = [&](int step, int stage) {
    copy_tile<kType, kMode>(s.places + step * Tile::kPlaces, shared_address(s.keys[group][stage]),
                            shared_address(&s.full[group][stage]));
  };
  if (warp == filler) {
    for (int i = 0; i < Shape::kStages; ++i) {
      const int step = group + i * Shape::kWarpgroups;
      if (step < num_steps) fill(step, i);
    }
  }
  load_queries<Shape::kThreads>(p, s, first_token, num_tokens);
  fence_async_proxy();
  __syncthreads();

  RingPosition ring;
  int step = group;
  for (int run = 0; run < s.num_runs; ++run) {
    const int last_step = s.run_step[run + 1];
    if (step >= last_step) continue;
    const int first_query = s.run_begin[run], end = s.run_end[run];
    const bool is_alone = kMode == IndexMode::kCandidates || end - first_query == 1;
    const OneQuery alone(s, first_query);
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
      if (is_alone) {
        (kMode == IndexMode::kMany ? OneQuery(s, first_query) : alone).score(a, begin);
      } else if constexpr (kMode == IndexMode::kFew) {
#pragma unroll 1
        for (int query = first_query; query < end; ++query) OneQuery(s, query).score(a, begin);
      } else if constexpr (kMode == IndexMode::kMany) {
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
