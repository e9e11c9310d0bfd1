// A row of logits held on the chip by a cluster of blocks, and what the steps of sampling need besides: keys that order
// floats as integers, reductions over a block, and a place in shared memory for what the blocks tell each other.
//
// Block r of the cluster owns the ids [r * chunk, r * chunk + count). Every sum that decides anything is one of
// integers, so no result depends on the order in which threads come by.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>

#include "backends/cuda/warp_scan.cuh"
#include "ops/sampling.h"

namespace deepinfer::cuda::sampling {

namespace cg = cooperative_groups;

inline constexpr int kThreads = 256;  // three blocks a multiprocessor fit by their registers and by their logits
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kCluster = 8;       // blocks a row, for any number of rows
inline constexpr int kBins = 1024;       // of a histogram
inline constexpr int kListSize = kBins;  // candidates that the first block sorts: the list takes the histogram's place
inline constexpr uint32_t kNoId = 0xffffffffu;

// Orders like the float for all but NaN; -0 must have been made +0.
__device__ inline uint32_t key_of(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}
__device__ inline float value_of(uint32_t key) {
  return __uint_as_float(key ^ ((key >> 31) != 0 ? 0x80000000u : 0xffffffffu));
}
inline constexpr uint32_t kKeyOfMinusInfinity = 0x007fffffu;

// Ids that may still be chosen: larger keys, and equal ones up to a largest id.
struct Filter {
  uint32_t low_key = kKeyOfMinusInfinity;
  uint32_t id_limit = 0;
  __device__ bool keeps(uint32_t key, uint32_t id) const { return key > low_key || (key == low_key && id <= id_limit); }
};

// What a block tells all blocks after its first pass.
struct Summary {
  uint32_t best_key;  // 0: no id is allowed
  uint32_t best_id;
  uint32_t is_bad;  // a NaN or +infinity
  uint32_t padding;
  uint32_t reached_by_k;      // a key that top_k ids of the block reach
  uint32_t reached_by_share;  // a key that the block's share of them, an eighth, reach
};

// Where a sum over a histogram's bins reaches its target: in `bin`, `before` being the sum of the bins above it.
struct Crossing {
  uint32_t bin;  // kBins: all bins together do not exceed the target
  uint32_t padding;
  uint64_t before;
  uint64_t inside;
  uint64_t target;
};

struct Shared {
  union {
    struct {
      uint32_t low[kBins];
      uint32_t high[kBins];
    } histogram;
    alignas(16) uint64_t list[kListSize];  // key << 32 | ~id
  };
  Summary summaries[kCluster];
  Crossing crossing;
  uint64_t scan[kWarps];
  double scores[kCluster];
  uint32_t score_ids[kCluster];
  uint32_t low_keys[kCluster];
  uint32_t high_keys[kCluster];
  uint32_t ties[kCluster];
  double warp_scores[kWarps];
  uint32_t warp_keys[kWarps];
  uint32_t warp_ids[kWarps];
  uint64_t counts[2][kWarps];
  uint32_t num_listed;
  uint32_t race_limit;
  uint32_t id_limit;
  alignas(16) float values[1];  // [chunk], -infinity where an id may not be chosen
};

// This block's part of the row and the parameters of the row.
struct Row {
  Shared* shared;
  uint32_t rank;      // of the block in its cluster
  uint32_t first_id;  // multiple of 32
  uint32_t count;     // ids of this block, maybe 0
  double temperature, inverse_temperature, top_p, min_p;
  uint64_t noise_key;
  int64_t position;
  int32_t top_k;
};

// Puts a candidate on the block's list, or counts it only if the list is full.
__device__ inline void append(Shared& s, float x, uint32_t id) {
  const uint32_t at = atomicAdd(&s.num_listed, 1);
  if (at < kListSize) s.list[at] = static_cast<uint64_t>(key_of(x)) << 32 | static_cast<uint32_t>(~id);
}

// Puts the list's first `count` entries, all different, in descending order, by counting for each those before it.
// Called by the whole block once the list is complete.
__device__ inline void sort_descending(uint64_t* list, uint32_t count) {
  constexpr int kEach = kListSize / kThreads;
  if (threadIdx.x == 0 && count % 2 != 0) list[count] = 0;  // entries are read in pairs; a list has room for it
  __syncthreads();
  uint64_t mine[kEach];
  uint32_t before[kEach] = {};
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const uint32_t i = e * kThreads + threadIdx.x;
    mine[e] = i < count ? list[i] : 0;
  }
  const auto* pairs = reinterpret_cast<const ulonglong2*>(list);
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    if (e * kThreads >= count) break;
#pragma unroll 4
    for (uint32_t i = 0; i < (count + 1) / 2; ++i) {
      const ulonglong2 pair = pairs[i];
      before[e] += (pair.x > mine[e] ? 1 : 0) + (pair.y > mine[e] ? 1 : 0);
    }
  }
  __syncthreads();
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    if (e * kThreads + threadIdx.x < count) list[before[e]] = mine[e];
  }
  __syncthreads();
}

// f(four neighbouring logits, the first one's id) for the block's ids, each in one call. Beyond the last id come up to
// three of -infinity.
template <typename F>
__device__ inline void for_each_four(const Row& row, F&& f) {
  for (uint32_t i = threadIdx.x * 4; i < row.count; i += kThreads * 4) {
    const float4 x4 = *reinterpret_cast<const float4*>(row.shared->values + i);
    const float x[4] = {x4.x, x4.y, x4.z, x4.w};
    f(x, row.first_id + i);
  }
}

// Puts the block's ids that belong on a list. Few do: four are asked before anything is decided.
template <typename Belongs>
__device__ inline void list_where(const Row& row, Shared& list_owner, Belongs&& belongs) {
  for_each_four(row, [&](const float(&x)[4], uint32_t id) {
    bool is_listed[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) is_listed[j] = belongs(x[j], id + j);
    if (!(is_listed[0] | is_listed[1] | is_listed[2] | is_listed[3])) return;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (is_listed[j]) append(list_owner, x[j], id + j);
    }
  });
}

// f(target block's shared memory) for every block of the cluster, each call by one thread.
template <typename Tell>
__device__ inline void tell_all(const Row& row, Tell&& tell) {
  if (threadIdx.x < kCluster) tell(*cg::this_cluster().map_shared_rank(row.shared, threadIdx.x));
}

// The largest (score, then lowest id) of the block, in thread 0.
__device__ inline void reduce_scores(Shared& s, double& score, uint32_t& id) {
  const auto take = [&](double other, uint32_t other_id) {
    if (other > score || (other == score && other_id < id)) score = other, id = other_id;
  };
  for (int step = 16; step > 0; step /= 2) {
    const double other = __shfl_xor_sync(0xffffffffu, score, step);
    const uint32_t other_id = __shfl_xor_sync(0xffffffffu, id, step);
    take(other, other_id);
  }
  if (threadIdx.x % 32 == 0) s.warp_scores[threadIdx.x / 32] = score, s.warp_ids[threadIdx.x / 32] = id;
  __syncthreads();
  if (threadIdx.x < kWarps) {
    score = s.warp_scores[threadIdx.x], id = s.warp_ids[threadIdx.x];
    for (int step = kWarps / 2; step > 0; step /= 2) {
      const double other = __shfl_xor_sync((1u << kWarps) - 1, score, step);
      const uint32_t other_id = __shfl_xor_sync((1u << kWarps) - 1, id, step);
      take(other, other_id);
    }
  }
}

// Sum of `mine` over the threads below this one. Two barriers; `total` for all threads.
__device__ inline uint64_t exclusive_scan(Shared& s, uint64_t mine, uint64_t& total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint64_t sum = inclusive_scan_of_warp(mine, lane);
  __syncthreads();
  if (lane == 31) s.scan[warp] = sum;
  __syncthreads();
  uint64_t before = 0;
  total = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += s.scan[w];
    total += s.scan[w];
  }
  return before + sum - mine;
}

}  // namespace deepinfer::cuda::sampling
