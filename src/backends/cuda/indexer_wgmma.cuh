// Index scores of 32 heads of 128 channels on the tensor cores: BF16 products, fp32 sums.
//
// A block of threads takes a few neighbouring tokens and a range of keys. Its queries lie in shared memory; neighbours
// with the same block table share their keys. Each warpgroup streams tiles of 64 keys through a ring of its own,
// converts a tile into registers once and multiplies it with one or four queries at a time. ReLU, weights and the sum
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
inline constexpr int kQueryBytes = kIndexHeads * kKeyChannels * 2;

// kCopies: bulk copies a tile takes from different places. Candidates lie in blocks of 8 keys.
template <ops::RowType kType, bool kCandidates>
struct IndexTile {
  using Format = KeyFormat<kType>;
  static constexpr int kKeysPerPlace = kCandidates ? 8 : kTileKeys;
  static constexpr int kPlaces = kTileKeys / kKeysPerPlace;
  static constexpr bool kByRow = Format::kSharedBytes != Format::kRowBytes;
  static constexpr int kSharedBytes = kTileKeys * Format::kSharedBytes;
};

template <ops::RowType kType, bool kCandidates>
struct IndexShape {
  static constexpr int kQueries = kCandidates ? 1 : 8;  // tokens of a block
  static constexpr int kWarpgroups = kCandidates ? 1 : 2;
  static constexpr int kThreads = kWarpgroups * 128;
  static constexpr int kStages = kType == ops::RowType::kE2m1Group32 ? 4 : 2;
  static constexpr int kMaxTiles = 64;  // tiles of a token in a block
  static constexpr int kMaxPlaces = kQueries * kMaxTiles * IndexTile<kType, kCandidates>::kPlaces;
  static constexpr int kBlocksPerSm = kCandidates ? 4 : 2;
};

template <ops::RowType kType, bool kCandidates>
struct IndexShared {
  using Shape = IndexShape<kType, kCandidates>;
  alignas(128) std::byte queries[Shape::kQueries * kQueryBytes];
  alignas(128) std::byte tiles[Shape::kWarpgroups][Shape::kStages][IndexTile<kType, kCandidates>::kSharedBytes];
  alignas(16) float weights[Shape::kQueries][4][8];  // half the weights of heads 8g + 2c + e, at [c][2g + e]
  uint64_t full[Shape::kWarpgroups][Shape::kStages];
  const std::byte* places[Shape::kMaxPlaces];  // where the keys of each step lie
  int64_t count[Shape::kQueries];              // scores of each token
  int32_t run_first[Shape::kQueries + 1];      // runs of tokens that share their keys: the first token of each
  int32_t run_step[Shape::kQueries + 1];       // and its first step; a step is a tile of a run
  int32_t num_runs;
};

// B operand without swizzle: 8 heads x 8 columns are 128 contiguous bytes, the next 8 columns follow, then 8 heads.
__device__ __forceinline__ uint64_t query_descriptor(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | uint64_t{128 >> 4} << 16 | uint64_t{2048 >> 4} << 32;
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

// Scores of the thread's keys with `kMany` queries that begin at `queries`. Lane c % 4 of four ends with query c's (or
// the only one's): result[0] of the first key, result[1] of the one four further.
template <int kMany>
__device__ __forceinline__ void score_tile(const uint32_t (&a)[32], uint32_t queries, const float (*weights)[4][8],
                                           float (&result)[2]) {
  float dots[16 * kMany];
  wgmma_fence();
#pragma unroll
  for (int s = 0; s < 8; ++s) {
    Wgmma<32 * kMany>::mma(dots, a + 4 * s, query_descriptor(queries + 256 * s), s > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_hold(dots);

  const int c = threadIdx.x % 4;
  float sums[kMany][2];
#pragma unroll
  for (int m = 0; m < kMany; ++m) {
    float w[8];
    load_weights(weights[m][c], w);
    sums[m][0] = weigh(dots + 16 * m, 0, w);
    sums[m][1] = weigh(dots + 16 * m, 1, w);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if constexpr (kMany == 1) {
      float sum = sums[0][half];
      sum += __shfl_xor_sync(~0u, sum, 1);
      result[half] = sum + __shfl_xor_sync(~0u, sum, 2);
    } else {
      static_assert(kMany == 4);
      float two[2];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const float kept = c & 1 ? sums[2 * m + 1][half] : sums[2 * m][half];
        const float given = c & 1 ? sums[2 * m][half] : sums[2 * m + 1][half];
        two[m] = kept + __shfl_xor_sync(~0u, given, 1);
      }
      const float kept = c & 2 ? two[1] : two[0], given = c & 2 ? two[0] : two[1];
      result[half] = kept + __shfl_xor_sync(~0u, given, 2);
    }
  }
}

// Stores the scores of a tile that begins at score `tile_begin`, and the maxima over 8. Lanes that hold no query of
// their own pass `mine` false.
__device__ __forceinline__ void store_scores(const IndexScores& scores, int64_t token, bool mine, int64_t tile_begin,
                                             int64_t count, const float (&result)[2]) {
  const int thread = threadIdx.x % 128;
  const int64_t i = tile_begin + first_key(thread);
  const uint32_t first = i < count ? ordered_score(result[0]) : 0;
  const uint32_t second = i + 4 < count ? ordered_score(result[1]) : 0;
  uint32_t best = max(first, second);
  best = max(best, __shfl_xor_sync(~0u, best, 4));
  best = max(best, __shfl_xor_sync(~0u, best, 8));
  if (!mine) return;
  uint32_t* values = scores.of(token);
  values[i] = first;
  values[i + 4] = second;
  if (thread % 16 < 4) scores.maxima_of(token)[i / kMaximaRows] = best;
}

// Runs and steps of the block. By one thread.
template <typename Shared>
__device__ void plan_runs(const IndexScoreParams& p, Shared& s, int64_t first_token, int num_tokens, int64_t first_tile,
                          int64_t max_tiles) {
  int runs = 0, step = 0;
  for (int i = 0; i < num_tokens;) {
    if (s.count[i] == 0) {
      ++i;
      continue;
    }
    std::byte* const* table = p.choice.blocks[first_token + i];
    const int first = i;
    int64_t longest = 0;
    for (; i < num_tokens && s.count[i] > 0 && p.choice.blocks[first_token + i] == table; ++i) {
      longest = max(longest, s.count[i]);
    }
    const int64_t tiles = min(max_tiles, (longest + kTileKeys - 1) / kTileKeys - first_tile);
    if (tiles <= 0) continue;
    s.run_first[runs] = first | i << 16;
    s.run_step[runs++] = step;
    step += static_cast<int>(tiles);
  }
  s.run_step[runs] = step;
  s.num_runs = runs;
}

template <ops::RowType kType, bool kCandidates>
__device__ const std::byte* find_place(const IndexScoreParams& p, int64_t token, int64_t place) {
  using Tile = IndexTile<kType, kCandidates>;
  int64_t row = place * Tile::kKeysPerPlace;
  if constexpr (kCandidates) {
    const int64_t last = p.choice.num_candidates[token] - 1;
    row = p.choice.row(token, min(place, last) * Tile::kKeysPerPlace);
  }
  return p.choice.blocks[token][row >> p.keys.block_shift] + p.keys.offset +
         (row & ((int64_t{1} << p.keys.block_shift) - 1)) * KeyFormat<kType>::kRowBytes;
}

// Copies a tile. By the threads of a warp; the first announces the bytes.
template <ops::RowType kType, bool kCandidates>
__device__ __forceinline__ void copy_tile(const std::byte* const* places, uint32_t to, uint32_t barrier) {
  using Tile = IndexTile<kType, kCandidates>;
  using Format = KeyFormat<kType>;
  const int lane = threadIdx.x % 32;
  if (lane == 0) barrier_expect(barrier, kTileKeys * Format::kRowBytes);
  const uint64_t policy = evict_first();
  if constexpr (Tile::kByRow) {
    __syncwarp();
    for (int key = lane; key < kTileKeys; key += 32) {
      copy_bulk(to + key * Format::kSharedBytes,
                places[key / Tile::kKeysPerPlace] + key % Tile::kKeysPerPlace * Format::kRowBytes, Format::kRowBytes,
                barrier, policy);
    }
  } else {
    if constexpr (Tile::kPlaces > 1) __syncwarp();
    constexpr int kBytes = Tile::kKeysPerPlace * Format::kRowBytes;
    if (lane < Tile::kPlaces) copy_bulk(to + lane * kBytes, places[lane], kBytes, barrier, policy);
  }
}

template <ops::RowType kType, bool kCandidates>
__global__ void __launch_bounds__(IndexShape<kType, kCandidates>::kThreads, IndexShape<kType, kCandidates>::kBlocksPerSm)
    index_scores_wgmma_kernel(const IndexScoreParams p, int tiles_per_block) {
#ifdef DI_SM90A
  using Shape = IndexShape<kType, kCandidates>;
  using Tile = IndexTile<kType, kCandidates>;
  using Shared = IndexShared<kType, kCandidates>;
  extern __shared__ __align__(128) std::byte memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const int64_t first_token = p.scores.first + int64_t{blockIdx.y} * Shape::kQueries;
  const int num_tokens =
      static_cast<int>(min(int64_t{Shape::kQueries}, p.scores.first + p.scores.rows - first_token));
  const int64_t first_tile = int64_t{blockIdx.x} * tiles_per_block;
  if (threadIdx.x < num_tokens) s.count[threadIdx.x] = p.count(first_token + threadIdx.x);
  if (threadIdx.x < Shape::kWarpgroups * Shape::kStages) {
    barrier_init(shared_address(&s.full[0][0] + threadIdx.x), 1);
    fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) plan_runs(p, s, first_token, num_tokens, first_tile, tiles_per_block);
  __syncthreads();
  const int num_runs = s.num_runs, num_steps = s.run_step[num_runs];
  if (num_steps == 0) return;
  for (int i = threadIdx.x, run = 0; i < num_steps * Tile::kPlaces; i += Shape::kThreads) {
    const int step = i / Tile::kPlaces;
    while (step >= s.run_step[run + 1]) ++run;
    const int64_t tile = first_tile + step - s.run_step[run];
    s.places[i] = find_place<kType, kCandidates>(p, first_token + (s.run_first[run] & 0xffff),
                                                 tile * Tile::kPlaces + i % Tile::kPlaces);
  }
  __syncthreads();

  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4;
  const auto fill = [&](int step, int stage) {
    copy_tile<kType, kCandidates>(s.places + step * Tile::kPlaces, shared_address(s.tiles[group][stage]),
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
    uint32_t a[32];
    barrier_wait(shared_address(&s.full[group][ring.stage]), ring.use);
    load_keys<kType>(s.tiles[group][ring.stage], a);
    sync_threads(1 + group, 128);
    const int next = step + Shape::kStages * Shape::kWarpgroups;
    if (warp == 0 && next < num_steps) fill(next, ring.stage);
    ring.advance(Shape::kStages);

    const int64_t tile_begin = (first_tile + step - s.run_step[run]) * kTileKeys;
    int token = s.run_first[run] & 0xffff;
    const int end = s.run_first[run] >> 16;
    const int c = threadIdx.x % 4;
    float result[2];
    if constexpr (Shape::kQueries >= 4) {
      for (; end - token > 1; token += 4) {
        // Queries beyond the run are whatever lies there; the queries of a block of tokens are a multiple of four.
        const int begin = min(token, Shape::kQueries - 4);
        score_tile<4>(a, shared_address(s.queries + begin * kQueryBytes), s.weights + begin, result);
        const int mine = begin + c;
        const bool valid = mine >= token && mine < end;
        store_scores(p.scores, first_token + mine, valid, tile_begin, valid ? s.count[mine] : 0, result);
      }
    }
    for (; token < end; ++token) {
      score_tile<1>(a, shared_address(s.queries + token * kQueryBytes), s.weights + token, result);
      store_scores(p.scores, first_token + token, c == 0, tile_begin, s.count[token], result);
    }
  }
#endif
}

}  // namespace deepinfer::cuda
