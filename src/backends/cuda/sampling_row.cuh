// A row of logits held on the chip by a cluster of blocks, and what the steps of sampling need besides: keys that order
// floats as integers, reductions over a block, and a place in shared memory for what the blocks tell each other.
//
// Block r of the cluster owns the ids [r * chunk, r * chunk + count). Every sum that decides anything is one of
// integers, so no result depends on the order in which threads come by.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>

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
  uint32_t is_bad;        // a NaN or +infinity
  uint32_t num_listed;    // candidates; more than kListSize: too many
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
    uint64_t list[kListSize];  // key << 32 | ~id
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
  double temperature, top_p, min_p;
  uint64_t noise_key;
  int64_t position;
  int32_t top_k;
};

// Puts a candidate on the block's list, or counts it only if the list is full.
__device__ inline void append(Shared& s, float x, uint32_t id) {
  const uint32_t at = atomicAdd(&s.num_listed, 1);
  if (at < kListSize) s.list[at] = static_cast<uint64_t>(key_of(x)) << 32 | static_cast<uint32_t>(~id);
}

// Sorts a list's first `count` entries, largest first; what lies behind up to the next power of two (64 at least)
// becomes 0. Called by the whole block, once the list is complete.
__device__ inline void sort_descending(uint64_t* list, uint32_t count) {
  uint32_t size = 64;
  while (size < count) size *= 2;
  for (uint32_t i = count + threadIdx.x; i < size; i += kThreads) list[i] = 0;
  __syncthreads();
  for (uint32_t length = 2; length <= size; length *= 2) {
    for (uint32_t step = length / 2; step > 0; step /= 2) {
      for (uint32_t pair = threadIdx.x; pair < size / 2; pair += kThreads) {
        const uint32_t i = 2 * pair - (pair & (step - 1));
        const uint64_t a = list[i], b = list[i + step];
        if (a < b == ((i & length) == 0)) list[i] = b, list[i + step] = a;
      }
      const uint32_t next = step > 1 ? step / 2 : length;
      if (step > 32 || next > 32) {
        __syncthreads();
      } else {
        __syncwarp();  // pairs at most 32 apart stay within a warp
      }
    }
  }
  __syncthreads();
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
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < kWarps; ++warp) take(s.warp_scores[warp], s.warp_ids[warp]);
  }
}

// Sum of `mine` over the threads below this one. Two barriers; `total` for all threads.
__device__ inline uint64_t exclusive_scan(Shared& s, uint64_t mine, uint64_t& total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint64_t sum = mine;
  for (int step = 1; step < 32; step *= 2) {
    const uint64_t below = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += below;
  }
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
