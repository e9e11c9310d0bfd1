// Narrows a row's filter to the best ids whose count (top-k) or probability (top-p) reaches a target: larger logits
// first, ties by the lower id. A histogram over slices of the logits finds the slice in which the target is reached;
// its ids are sorted if they are few. Else further histograms over the keys inside it find the logit, and a count of
// ties the id. All ways give the same filter.
//
// Probabilities are fixed-point numbers of 2^-44, so that their sums are exact.
#pragma once

#include "backends/cuda/sampling_row.cuh"

namespace deepinfer::cuda::sampling {

inline constexpr double kWeightUnit = 0x1p44;
inline constexpr int64_t kMostIds = int64_t{1} << 19;  // whose weights, at most 1 each, fit in 63 bits

// 2^44 * exp((x - best) / temperature), the same number for the same x. Without a branch, so that several are worked
// out side by side: 2^n * exp(r) with |r| <= ln 2 / 2, and twelve terms of the series, which are right to 2^-52.
__device__ inline uint64_t weight_of(const Row& row, float x, float best) {
  constexpr double kLog2E = 1.4426950408889634, kLn2High = 0x1.62e42fefa0000p-1, kLn2Low = 0x1.cf79abc9e3b3ap-40;
  constexpr double kRounder = 0x1.8p52;
  const double y = (static_cast<double>(x) - best) * row.inverse_temperature;
  const double shifted = fma(y, kLog2E, kRounder);
  const double n = shifted - kRounder;
  const double r = fma(n, -kLn2Low, fma(n, -kLn2High, y));
  double sum = 1.0 / 479001600;
#pragma unroll
  for (const double term : {1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120,
                            1.0 / 24, 1.0 / 6, 1.0 / 2, 1.0, 1.0}) {
    sum = fma(sum, r, term);
  }
  const double scale = __hiloint2double((__double2loint(shifted) + 44 + 1023) << 20, 0);
  return y > -32 ? __double2ull_rn(sum * scale) : 0;  // below, less than half a unit
}

// The least sum that top-p accepts.
__device__ inline uint64_t top_p_target(uint64_t total, double top_p) {
  const auto target = static_cast<uint64_t>(ceil(top_p * static_cast<double>(total)));
  return target < 1 ? 1 : target > total ? total : target;
}

// Adds to four bins, or to one if they are the same. Of a 64-bit sum the halves are added apart, with the carry.
template <bool kWeighted>
__device__ inline void add_to_bins(Shared& s, const uint32_t (&bins)[4], uint64_t (&amounts)[4]) {
  if (bins[0] == bins[1] && bins[0] == bins[2] && bins[0] == bins[3]) {
    amounts[0] += amounts[1] + amounts[2] + amounts[3];
    amounts[1] = amounts[2] = amounts[3] = 0;
  }
  uint32_t old[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (amounts[j] != 0) old[j] = atomicAdd(&s.histogram.low[bins[j]], static_cast<uint32_t>(amounts[j]));
  }
  if constexpr (kWeighted) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (amounts[j] == 0) continue;
      const auto low = static_cast<uint32_t>(amounts[j]);
      const uint32_t high = static_cast<uint32_t>(amounts[j] >> 32) + (old[j] + low < low ? 1 : 0);
      if (high != 0) atomicAdd(&s.histogram.high[bins[j]], high);
    }
  }
}

__device__ inline void clear_histogram(Shared& s) {
  for (int bin = threadIdx.x; bin < kBins; bin += kThreads) s.histogram.low[bin] = 0, s.histogram.high[bin] = 0;
  __syncthreads();
}

// Adds the histograms of all blocks and finds where their sum reaches target_of(total). With `may_keep_all`, bin kBins
// says that it does not exceed it.
template <bool kWeighted, typename Target>
__device__ Crossing find_crossing(const Row& row, bool may_keep_all, Target&& target_of) {
  const cg::cluster_group cluster = cg::this_cluster();
  Shared& s = *row.shared;
  cluster.sync();
  if (row.rank == 0) {
    constexpr int kEach = kBins / kThreads;
    static_assert(kEach == 4);  // a thread's bins are one load
    uint64_t bins[kEach] = {}, mine = 0, total;
#pragma unroll
    for (int block = 0; block < kCluster; ++block) {
      const auto& other = cluster.map_shared_rank(row.shared, block)->histogram;
      const uint4 low = reinterpret_cast<const uint4*>(other.low)[threadIdx.x];
      bins[0] += low.x, bins[1] += low.y, bins[2] += low.z, bins[3] += low.w;
      if constexpr (kWeighted) {
        const uint4 high = reinterpret_cast<const uint4*>(other.high)[threadIdx.x];
        bins[0] += static_cast<uint64_t>(high.x) << 32, bins[1] += static_cast<uint64_t>(high.y) << 32;
        bins[2] += static_cast<uint64_t>(high.z) << 32, bins[3] += static_cast<uint64_t>(high.w) << 32;
      }
    }
    for (int b = 0; b < kEach; ++b) mine += bins[b];
    uint64_t before = exclusive_scan(s, mine, total);
    const uint64_t target = target_of(total);
    Crossing found{kBins, 0, 0, 0, target};
    bool is_mine = false;
    if (may_keep_all && total <= target) {
      is_mine = threadIdx.x == 0;
    } else if (before < target && target <= before + mine) {
      is_mine = true;
      int b = 0;
      while (before + bins[b] < target) before += bins[b++];
      found = {threadIdx.x * kEach + b, 0, before, bins[b], target};
    }
    if (is_mine) {
      for (int block = 0; block < kCluster; ++block) cluster.map_shared_rank(row.shared, block)->crossing = found;
    }
  }
  cluster.sync();
  return s.crossing;
}

// The smallest and the largest key, over all blocks, of the ids that belong.
template <typename Belongs>
__device__ void find_range(const Row& row, uint32_t& low, uint32_t& high, Belongs&& belongs) {
  Shared& s = *row.shared;
  low = 0xffffffffu, high = 0;
  for_each_four(row, [&](const float(&x)[4], uint32_t id) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t key = key_of(x[j]);
      if (belongs(x[j], id + j)) low = min(low, key), high = max(high, key);
    }
  });
  low = __reduce_min_sync(0xffffffffu, low);
  high = __reduce_max_sync(0xffffffffu, high);
  if (threadIdx.x % 32 == 0) s.warp_keys[threadIdx.x / 32] = low, s.warp_ids[threadIdx.x / 32] = high;
  __syncthreads();
  for (int warp = 0; warp < kWarps; ++warp) low = min(low, s.warp_keys[warp]), high = max(high, s.warp_ids[warp]);
  tell_all(row, [&](Shared& other) { other.low_keys[row.rank] = low, other.high_keys[row.rank] = high; });
  cg::this_cluster().sync();
  for (int block = 0; block < kCluster; ++block)
    low = min(low, s.low_keys[block]), high = max(high, s.high_keys[block]);
}

// The id of the take-th of the ids that belong, over all blocks; there are at least so many.
template <typename Belongs>
__device__ uint32_t find_nth(const Row& row, uint64_t take, Belongs&& belongs) {
  const cg::cluster_group cluster = cg::this_cluster();
  Shared& s = *row.shared;
  const uint32_t each = ((row.count + kThreads - 1) / kThreads) | 1;  // odd: no two threads meet in a bank
  const uint32_t begin = min(threadIdx.x * each, row.count), end = min(begin + each, row.count);
  uint64_t mine = 0, total;
  for (uint32_t i = begin; i < end; ++i) mine += belongs(key_of(s.values[i]), row.first_id + i) ? 1 : 0;
  uint64_t before = exclusive_scan(s, mine, total);
  tell_all(row, [&](Shared& other) { other.ties[row.rank] = static_cast<uint32_t>(total); });
  cluster.sync();
  for (uint32_t block = 0; block < row.rank; ++block) before += s.ties[block];
  if (before < take && take <= before + mine) {
    uint32_t i = begin;
    for (;; ++i) {
      if (belongs(key_of(s.values[i]), row.first_id + i) && ++before == take) break;
    }
    for (int block = 0; block < kCluster; ++block) {
      cluster.map_shared_rank(row.shared, block)->id_limit = row.first_id + i;
    }
  }
  cluster.sync();
  return s.id_limit;
}

// If not too many ids belong: sorts them in the first block and finds the one with which the sum of `measure` over them
// reaches `target`. All blocks get the filter that ends there.
template <typename Belongs, typename Measure>
__device__ bool narrow_by_sorting(const Row& row, uint64_t target, Filter& result, Belongs&& belongs,
                                  Measure&& measure) {
  const cg::cluster_group cluster = cg::this_cluster();
  Shared& s = *row.shared;
  if (threadIdx.x == 0) s.num_listed = 0;
  __syncthreads();
  list_where(row, s, belongs);
  __syncthreads();
  const uint32_t mine = s.num_listed;
  tell_all(row, [&](Shared& other) { other.ties[row.rank] = min(mine, kListSize + 1); });
  cluster.sync();
  uint32_t total = 0, offset = 0;
  for (uint32_t block = 0; block < kCluster; ++block) {
    if (block == row.rank) offset = total;
    total += s.ties[block];
  }
  if (total > kListSize) return false;
  if (row.rank != 0) {  // behind the first block's own
    uint64_t* list = cluster.map_shared_rank(row.shared, 0)->list;
    for (uint32_t i = threadIdx.x; i < mine; i += kThreads) list[offset + i] = s.list[i];
  }
  cluster.sync();
  if (row.rank == 0) {
    sort_descending(s.list, total);
    constexpr uint32_t kEach = kListSize / kThreads;
    const uint32_t first = kEach * threadIdx.x;
    uint64_t amounts[kEach], sum = 0, all;
    for (uint32_t e = 0; e < kEach; ++e) {
      amounts[e] = first + e < total ? measure(value_of(static_cast<uint32_t>(s.list[first + e] >> 32))) : 0;
      sum += amounts[e];
    }
    uint64_t before = exclusive_scan(s, sum, all);
    for (uint32_t e = 0; e < kEach; ++e) {
      if (before < target && target <= before + amounts[e]) {
        const uint64_t last = s.list[first + e];
        for (int block = 0; block < kCluster; ++block) {
          Shared& other = *cluster.map_shared_rank(row.shared, block);
          other.low_keys[0] = static_cast<uint32_t>(last >> 32), other.id_limit = ~static_cast<uint32_t>(last);
        }
      }
      before += amounts[e];
    }
  }
  cluster.sync();
  result = {s.low_keys[0], s.id_limit};
  return true;
}

// Called by all blocks of the cluster. target_of(total) with `total` over the ids that `filter` keeps.
template <bool kWeighted, typename Target>
__device__ Filter narrow(const Row& row, const Filter& filter, float best, Target&& target_of) {
  Shared& s = *row.shared;
  const auto measure = [&](float x) -> uint64_t { return kWeighted ? weight_of(row, x, best) : 1; };
  const float slices_per_logit = kWeighted ? static_cast<float>(32 / row.temperature) : 64.0f;
  const auto slice_of = [&](float x) -> uint32_t {
    const float distance = (best - x) * slices_per_logit;
    return distance < kBins - 1 ? static_cast<uint32_t>(distance) : kBins - 1;
  };
  const auto add_all = [&](auto&& belongs, auto&& bin_of) {
    clear_histogram(s);
    for_each_four(row, [&](const float(&x)[4], uint32_t id) {
      uint32_t bins[4];
      uint64_t amounts[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t key = key_of(x[j]);
        const bool counts = belongs(key) && filter.keeps(key, id + j);
        bins[j] = counts ? bin_of(key, x[j]) : 0;
        amounts[j] = measure(x[j]);
        if (!counts) amounts[j] = 0;
      }
      add_to_bins<kWeighted>(s, bins, amounts);
    });
  };

  add_all([](uint32_t) { return true; }, [&](uint32_t, float x) { return slice_of(x); });
  Crossing crossing = find_crossing<kWeighted>(row, true, target_of);
  if (crossing.bin == kBins) return filter;
  uint64_t remaining = crossing.target - crossing.before;
  const auto is_in_slice = [&](float x, uint32_t id) {
    return filter.keeps(key_of(x), id) & (slice_of(x) == crossing.bin);
  };
  Filter result;
  if (narrow_by_sorting(row, remaining, result, is_in_slice, measure)) return result;
  uint32_t low, high;
  find_range(row, low, high, is_in_slice);
  while (low < high) {
    const int shift = max(0, 32 - __clz(high - low) - 10);
    static_assert(kBins == 1 << 10);
    add_all([&](uint32_t key) { return key >= low && key <= high; },
            [&](uint32_t key, float) { return (high - key) >> shift; });
    crossing = find_crossing<kWeighted>(row, false, [&](uint64_t) { return remaining; });
    remaining -= crossing.before;
    high -= crossing.bin << shift;
    low = high - min((1u << shift) - 1, high - low);
  }

  const uint64_t each = measure(value_of(low));
  const uint64_t take = (remaining + each - 1) / each;
  result = {low, low == filter.low_key ? filter.id_limit : kNoId};
  if (take < crossing.inside / each) {
    result.id_limit =
        find_nth(row, take, [&](uint32_t key, uint32_t id) { return key == low && filter.keeps(key, id); });
  }
  return result;
}

}  // namespace deepinfer::cuda::sampling
