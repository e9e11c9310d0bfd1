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
#include "backends/cuda/pipeline.cuh"
#include "backends/cuda/wgmma.cuh"

namespace deepinfer::cuda {

inline constexpr int kIndexHeads = 32;
inline constexpr int kStepKeys = 2 * kTileKeys;
inline constexpr int kQueryBytes = kIndexHeads * kKeyChannels * 2;

// Keys come in steps of two tiles. A step's bytes lie in several places: candidates in blocks of 8 keys.
template <ops::RowType kType, bool kCandidates>
struct IndexStep {
  using Format = KeyFormat<kType>;
  static constexpr int kKeys = kStepKeys;
  static constexpr int kKeysPerPlace = kCandidates ? 8 : kTileKeys;
  static constexpr int kPlaces = kKeys / kKeysPerPlace;
  static constexpr bool kByRow = Format::kSharedBytes != Format::kRowBytes;
  static constexpr int kSharedBytes = kKeys * Format::kSharedBytes;
};

template <ops::RowType kType, bool kCandidates>
struct IndexShape {
  static constexpr int kQueries = kCandidates ? 1 : 8;  // tokens of a block
  static constexpr int kWarpgroups = kCandidates ? 1 : 2;
  static constexpr int kThreads = kWarpgroups * 128;
  static constexpr int kStages = 2;
  static constexpr int kMaxSteps = 32;  // of a token in a block
  static constexpr int kMaxPlaces = kQueries * kMaxSteps * IndexStep<kType, kCandidates>::kPlaces;
  static constexpr int kBlocksPerSm = kCandidates ? 4 : 2;
};

template <ops::RowType kType, bool kCandidates>
struct IndexShared {
  using Shape = IndexShape<kType, kCandidates>;
  alignas(128) std::byte queries[Shape::kQueries * kQueryBytes];
  alignas(128) std::byte keys[Shape::kWarpgroups][Shape::kStages][IndexStep<kType, kCandidates>::kSharedBytes];
  alignas(16) float weights[Shape::kQueries][4][8];  // half the weights of heads 8g + 2c + e, at [c][2g + e]
  uint64_t full[Shape::kWarpgroups][Shape::kStages];
  const std::byte* places[Shape::kMaxPlaces];  // where the keys of each step lie
  uint32_t* values[Shape::kQueries];           // of each token
  uint32_t* maxima[Shape::kQueries];
  int32_t count[Shape::kQueries];              // scores of each token
  int32_t run_begin[Shape::kQueries];          // runs of tokens that share their keys
  int32_t run_end[Shape::kQueries];
  int32_t run_count[Shape::kQueries];          // the most scores of any of its tokens
  int32_t run_step[Shape::kQueries + 1];       // its first step
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

template <int kThreads>
__device__ void load_query(const IndexScoreParams& p, int64_t token, std::byte* out, float (&weights)[4][8]) {
  const int c = threadIdx.x % 4, h = threadIdx.x % 32 / 4;
  const auto* q = reinterpret_cast<const uint16_t*>(p.q.data) + token * p.q.stride;
  for (int group = threadIdx.x / 32; group < kIndexHeads / 8; group += kThreads / 32) {
    uint4 from[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      from[j] = *reinterpret_cast<const uint4*>(q + (group * 8 + h) * kKeyChannels + 32 * c + 8 * j);
    }
    auto* to = reinterpret_cast<uint32_t*>(out + group * 2048 + h * 16 + c * 4);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      to[(4 * j) * 32] = __byte_perm(from[j].x, from[j].z, 0x5410);
      to[(4 * j + 1) * 32] = __byte_perm(from[j].x, from[j].z, 0x7632);
      to[(4 * j + 2) * 32] = __byte_perm(from[j].y, from[j].w, 0x5410);
      to[(4 * j + 3) * 32] = __byte_perm(from[j].y, from[j].w, 0x7632);
    }
  }
  if (threadIdx.x < kIndexHeads) {
    const int head = threadIdx.x;
    weights[head % 8 / 2][head / 8 * 2 + head % 2] = 0.5f * load_element(p.head_weights, token, head);
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

__device__ __forceinline__ void load_weights(const float (&from)[8], float (&weights)[8]) {
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

// Scores of a step's keys with one query. Thread c of four ends with the key of tile c / 2 that is 4 * (c % 2) after
// first_key. `release` is called once the keys are in registers.
template <ops::RowType kType, typename Release>
__device__ __forceinline__ float score_one(const std::byte* keys, uint32_t query, const float (&weights)[4][8],
                                           const Release& release) {
  uint32_t a[32], b[32];
  float first[16], second[16];
  load_keys<kType>(keys, a);
  multiply(first, a, query);
  load_keys<kType>(keys + kTileKeys * KeyFormat<kType>::kSharedBytes, b);
  release();
  multiply(second, b, query);
  const int c = threadIdx.x % 4;
  float w[8];
  load_weights(weights[c], w);
  wgmma_wait<1>();
  wgmma_hold(first);
  const float low = exchange(weigh(first, 0, w), weigh(first, 1, w), c & 1, 1);
  wgmma_wait<0>();
  wgmma_hold(second);
  const float high = exchange(weigh(second, 0, w), weigh(second, 1, w), c & 1, 1);
  return exchange(low, high, c & 2, 2);
}

// Stores what score_four left, of the tile that begins at score `begin`, and the maxima over 8.
template <typename Shared>
__device__ __forceinline__ void store_four(const Shared& s, int query, bool valid, int begin, const float (&result)[2]) {
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

// The same for score_one.
template <typename Shared>
__device__ __forceinline__ void store_one(const Shared& s, int query, int begin, float result) {
  const int c = threadIdx.x % 4;
  const int i = begin + first_key(threadIdx.x % 128) + c / 2 * kTileKeys + c % 2 * 4;
  const uint32_t score = i < s.count[query] ? ordered_score(result) : 0;
  uint32_t best = max(score, __shfl_xor_sync(~0u, score, 1));
  best = max(best, __shfl_xor_sync(~0u, best, 4));
  best = max(best, __shfl_xor_sync(~0u, best, 8));
  s.values[query][i] = score;
  if ((threadIdx.x & 13) == 0) s.maxima[query][i / kMaximaRows] = best;
}

// Runs and steps of the block. By one thread.
template <typename Shared>
__device__ void plan_runs(const IndexScoreParams& p, Shared& s, int64_t first_token, int num_tokens, int first_step,
                          int max_steps) {
  int runs = 0, step = 0;
  for (int i = 0; i < num_tokens;) {
    if (s.count[i] == 0) {
      ++i;
      continue;
    }
    std::byte* const* table = p.choice.blocks[first_token + i];
    const int begin = i;
    int longest = 0;
    for (; i < num_tokens && s.count[i] > 0 && p.choice.blocks[first_token + i] == table; ++i) {
      longest = max(longest, s.count[i]);
    }
    const int steps = min(max_steps, (longest + kStepKeys - 1) / kStepKeys - first_step);
    if (steps <= 0) continue;
    s.run_begin[runs] = begin;
    s.run_end[runs] = i;
    s.run_count[runs] = longest;
    s.run_step[runs++] = step;
    step += steps;
  }
  s.run_step[runs] = step;
  s.num_runs = runs;
}

// Where the keys with scores place * kKeysPerPlace and on lie. Beyond the last key: where that lies.
template <ops::RowType kType, bool kCandidates>
__device__ const std::byte* find_place(const IndexScoreParams& p, int64_t token, int count, int place) {
  using Step = IndexStep<kType, kCandidates>;
  const int last = (count - 1) / Step::kKeysPerPlace;
  const int64_t row = p.choice.row(token, int64_t{min(place, last)} * Step::kKeysPerPlace);
  return p.choice.blocks[token][row >> p.keys.block_shift] + p.keys.offset +
         (row & ((int64_t{1} << p.keys.block_shift) - 1)) * KeyFormat<kType>::kRowBytes;
}

// Copies a step's keys. By the threads of a warp; the first announces the bytes.
template <ops::RowType kType, bool kCandidates>
__device__ __forceinline__ void copy_step(const std::byte* const* places, uint32_t to, uint32_t barrier) {
  using Step = IndexStep<kType, kCandidates>;
  using Format = KeyFormat<kType>;
  const int lane = threadIdx.x % 32;
  if (lane == 0) barrier_expect(barrier, Step::kKeys * Format::kRowBytes);
  __syncwarp();
  const uint64_t policy = evict_first();
  if constexpr (Step::kByRow) {
    for (int key = lane; key < Step::kKeys; key += 32) {
      copy_bulk(to + key * Format::kSharedBytes,
                places[key / Step::kKeysPerPlace] + key % Step::kKeysPerPlace * Format::kRowBytes, Format::kRowBytes,
                barrier, policy);
    }
  } else {
    constexpr int kBytes = Step::kKeysPerPlace * Format::kRowBytes;
    if (lane < Step::kPlaces) copy_bulk(to + lane * kBytes, places[lane], kBytes, barrier, policy);
  }
}

template <ops::RowType kType, bool kCandidates>
__global__ void __launch_bounds__(IndexShape<kType, kCandidates>::kThreads, IndexShape<kType, kCandidates>::kBlocksPerSm)
    index_scores_wgmma_kernel(const IndexScoreParams p, int steps_per_block) {
#ifdef DI_SM90A
  using Shape = IndexShape<kType, kCandidates>;
  using Step = IndexStep<kType, kCandidates>;
  using Shared = IndexShared<kType, kCandidates>;
  extern __shared__ __align__(128) std::byte memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const int64_t first_token = p.scores.first + int64_t{blockIdx.y} * Shape::kQueries;
  const int num_tokens =
      static_cast<int>(min(int64_t{Shape::kQueries}, p.scores.first + p.scores.rows - first_token));
  const int first_step = blockIdx.x * steps_per_block;
  if (threadIdx.x < Shape::kQueries) {
    const int i = threadIdx.x;
    s.count[i] = i < num_tokens ? static_cast<int32_t>(p.count(first_token + i)) : 0;
    s.values[i] = p.scores.of(first_token + i);
    s.maxima[i] = p.scores.maxima_of(first_token + i);
  }
  if (threadIdx.x < Shape::kWarpgroups * Shape::kStages) {
    barrier_init(shared_address(&s.full[0][0] + threadIdx.x), 1);
    fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) plan_runs(p, s, first_token, num_tokens, first_step, steps_per_block);
  __syncthreads();
  const int num_steps = s.run_step[s.num_runs];
  if (num_steps == 0) return;
  for (int i = threadIdx.x, run = 0; i < num_steps * Step::kPlaces; i += Shape::kThreads) {
    const int step = i / Step::kPlaces;
    while (step >= s.run_step[run + 1]) ++run;
    s.places[i] = find_place<kType, kCandidates>(
        p, first_token + s.run_begin[run], s.run_count[run],
        (first_step + step - s.run_step[run]) * Step::kPlaces + i % Step::kPlaces);
  }
  __syncthreads();

  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4;
  const auto fill = [&](int step, int stage) {
    copy_step<kType, kCandidates>(s.places + step * Step::kPlaces, shared_address(s.keys[group][stage]),
                                  shared_address(&s.full[group][stage]));
  };
  if (warp == 0) {
    for (int i = 0; i < Shape::kStages; ++i) {
      const int step = group + i * Shape::kWarpgroups;
      if (step < num_steps) fill(step, i);
    }
  }
  for (int i = 0; i < num_tokens; ++i) {
    if (s.count[i] > 0) load_query<Shape::kThreads>(p, first_token + i, s.queries + i * kQueryBytes, s.weights[i]);
  }
  fence_async_proxy();
  __syncthreads();

  RingPosition ring;
  int run = 0;
  for (int step = group; step < num_steps; step += Shape::kWarpgroups) {
    while (step >= s.run_step[run + 1]) ++run;
    const int begin = (first_step + step - s.run_step[run]) * kStepKeys;
    const std::byte* keys = s.keys[group][ring.stage];
    const auto release = [&] {
      sync_threads(1 + group, 128);
      const int next = step + Shape::kStages * Shape::kWarpgroups;
      if (warp == 0 && next < num_steps) fill(next, ring.stage);
    };
    barrier_wait(shared_address(&s.full[group][ring.stage]), ring.use);
    const int first_query = s.run_begin[run], end = s.run_end[run];
    if (kCandidates || end - first_query == 1) {
      const float result = score_one<kType>(keys, query_operand(s.queries + first_query * kQueryBytes),
                                            s.weights[first_query], release);
      store_one(s, first_query, begin, result);
    } else if constexpr (!kCandidates) {
#pragma unroll 1
      for (int half = 0; half < 2; ++half) {
        uint32_t a[32];
        load_keys<kType>(keys + half * kTileKeys * KeyFormat<kType>::kSharedBytes, a);
        if (half == 1) release();
        const int tile_begin = begin + half * kTileKeys;
        if (tile_begin >= s.run_count[run]) continue;
#pragma unroll 1
        for (int query = first_query; query < end; query += 4) {
          // Neighbours that are not of the run take part, and their results are dropped.
          const int four = min(query, Shape::kQueries - 4), mine = four + threadIdx.x % 4;
          float result[2];
          score_four(a, query_operand(s.queries + four * kQueryBytes), s.weights + four, result);
          store_four(s, mine, mine >= query && mine < end, tile_begin, result);
        }
      }
    }
    ring.advance(Shape::kStages);
  }
#endif
}

}  // namespace deepinfer::cuda
