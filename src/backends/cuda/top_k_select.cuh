// Which of a row's values are the k largest, by a team of threads, and in what order they are written.
#pragma once

#include "backends/cuda/top_k_values.cuh"
#include "backends/cuda/warp_scan.cuh"

namespace deepinfer::cuda {

// Values [low, low + 2^width) hold the k-th largest; `above` values lie higher, `count` in it.
struct TopKRange {
  uint32_t low = 0;
  uint32_t high = 0;  // the largest value of all
  int width = 0;
  uint32_t above = 0;
  uint32_t count = ~0u;  // not known yet

  __device__ bool is_decided(uint32_t k) const { return width == 0 || above + count == k; }
};

// From a value that k values of the row reach to the largest: the least maximum of a partition into at least k parts.
// A part are the values that a thread saw, or each fourth of them; best[i] is the largest of those.
__device__ inline TopKRange find_range(TopKTeam& team, const uint32_t (&best)[4], uint32_t k) {
  const uint32_t most = max(max(best[0], best[1]), max(best[2], best[3]));
  const bool by_fours = k > kTopKThreads * team.num_blocks;
  const uint32_t parts = by_fours ? 4 * kTopKThreads : kTopKThreads;  // of a block
  const uint32_t least = by_fours ? min(min(best[0], best[1]), min(best[2], best[3])) : most;
  const uint2 range = team.warps.share({__reduce_min_sync(~0u, least), __reduce_max_sync(~0u, most)});
  uint32_t low = __reduce_min_sync(~0u, range.x), high = __reduce_max_sync(~0u, range.y);
  if (team.num_blocks > 1) {
    // The parts of a block are enough, or those of all of them.
    const uint2* of_blocks = team.share({low, high});
#pragma unroll 1
    for (int b = 0; b < team.num_blocks; ++b) {
      low = parts >= k ? max(low, of_blocks[b].x) : min(low, of_blocks[b].x);
      high = max(high, of_blocks[b].y);
    }
  }
  if (parts * team.num_blocks < k) low = 0;
  return {low, high, 32 - __clz(static_cast<int>(high - low))};
}

// Where the k-th value from the top lies in histograms of blocks, largest bins first, if `above` lie higher: the bin,
// how many lie above it and in it.
struct TopKBin {
  uint32_t bin, above, count;
};
__device__ inline TopKBin find_bin(const uint32_t* histograms, const TopKTeam& team, uint32_t k, uint32_t above) {
  constexpr int kEach = kTopKBins / 32;
  const int lane = threadIdx.x % 32;
  uint32_t counts[kEach] = {};
#pragma unroll 1
  for (int b = 0; b < team.num_blocks; ++b) {
    const auto* quads = reinterpret_cast<const uint4*>(histograms + b * kTopKBins + lane * kEach);
#pragma unroll
    for (int i = 0; i < kEach / 4; ++i) {
      const uint4 v = quads[i];
      counts[4 * i] += v.x, counts[4 * i + 1] += v.y, counts[4 * i + 2] += v.z, counts[4 * i + 3] += v.w;
    }
  }
  uint32_t own = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) own += counts[i];
  const uint32_t sum = inclusive_scan_of_warp(own, lane);
  uint32_t higher = above + sum - own;
  const int holder = __ffs(static_cast<int>(__ballot_sync(~0u, higher < k && higher + own >= k))) - 1;
  TopKBin found = {};
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (higher < k && higher + counts[i] >= k) found = {static_cast<uint32_t>(lane * kEach + i), higher, counts[i]};
    higher += counts[i];
  }
  return {__shfl_sync(~0u, found.bin, holder), __shfl_sync(~0u, found.above, holder),
          __shfl_sync(~0u, found.count, holder)};
}

// One step: counts the values of the range by their next digit and goes to the bin of the k-th largest. Returns how
// many values of that bin the blocks before have.
__device__ inline uint32_t narrow(TopKTeam& team, TopKValues& values, uint32_t k, TopKRange& range) {
  TopKShared& s = team.s;
  const uint32_t turn = team.histogram_turn++ % 3;
  const int shift = max(range.width - 8, 0);
  const uint32_t low = range.low, digits = 1u << (range.width - shift);
  values.each_chunk([&] {
    const int left = values.count - values.first;
#pragma unroll
    for (int i = 0; i < kTopKEach; ++i) {
      if (i % 8 == 0 && i >= values.each()) break;
      const uint32_t digit = (values.keys[i] - low) >> shift;
      if (values.keys[i] >= low && digit < digits && i < left) {
        atomicAdd(&s.histogram[turn][kTopKBins - 1 - digit], 1u);
      }
    }
  });
  __syncthreads();
  // What the step before counted was read by all before this barrier, and is used again after the next.
  if (threadIdx.x < kTopKBins) s.histogram[(turn + 2) % 3][threadIdx.x] = 0;
  const uint32_t* histograms = team.share_histogram(s.histogram[turn]);
  const TopKBin bin = find_bin(histograms, team, k, range.above);
  range = {low + ((kTopKBins - 1 - bin.bin) << shift), range.high, shift, bin.above, bin.count};
  uint32_t before = 0;
#pragma unroll 1
  for (int b = 0; b < team.block; ++b) before += histograms[b * kTopKBins + bin.bin];
  return before;
}

// Lists a thread's values of the last bin for ranking: `listed`, by bits.
__device__ inline void list_for_ranking(TopKTeam& team, const TopKValues& values, uint32_t listed,
                                        uint32_t first_ranked, int first_of_part) {
  TopKShared& s = team.s;
#pragma unroll 1
  for (; listed != 0; listed &= listed - 1) {
    const int i = __ffs(static_cast<int>(listed)) - 1;
    const uint32_t position = first_of_part + values.first + i, slot = first_ranked + atomicAdd(&s.num_ranked, 1u);
    auto* to = reinterpret_cast<uint2*>(&s.ranked[slot]);
    const uint2 value = {~position, values.key(i)};
    if (team.num_blocks == 1) {
      *to = value;
    } else {
#pragma unroll 1
      for (int b = 0; b < team.num_blocks; ++b) send(to, team.barrier(), b, value);
    }
  }
}

// Of the `count` values listed, the largest `left` win. A block answers for its own, which are those from number
// `first` on: sets their bits in `won` and counts them.
__device__ inline void rank(TopKTeam& team, uint32_t left, uint32_t count, uint32_t first, uint32_t* won,
                            int first_of_part) {
  TopKShared& s = team.s;
  if (team.num_blocks > 1) team.receive(count * sizeof(uint64_t));
  __syncthreads();
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (uint32_t i = first + threadIdx.x / 32; i < first + s.num_ranked; i += kTopKWarps) {
    const uint64_t value = s.ranked[i];
    uint32_t higher = 0;
#pragma unroll 1
    for (uint32_t j = lane; j < count; j += 32) higher += s.ranked[j] > value;
    if (__reduce_add_sync(~0u, higher) >= left || lane != 0) continue;
    const int position = static_cast<int>(~static_cast<uint32_t>(value)) - first_of_part;
    atomicOr(&won[position / 32], 1u << position % 32);
    atomicAdd(&s.num_won, 1u);
  }
  __syncthreads();
}

// Selects the k largest of the values, of which more than k exist and at least k reach range.low, and calls
// write(place, position in the part) for each, in order. `won` (a bit a value of the part), num_ranked and num_won are
// 0 before; the part begins at first_of_part.
template <typename Write>
__device__ __forceinline__ void select(TopKTeam& team, TopKValues& values, TopKRange range, uint32_t k, uint32_t* won,
                                       int first_of_part, const Write& write) {
  TopKShared& s = team.s;
  uint32_t first_ranked = 0;
#pragma unroll 1
  while (!range.is_decided(k) && range.count > kTopKRanked) first_ranked = narrow(team, values, k, range);
  const uint32_t left = k - range.above;  // of the last bin
  const bool all = left == range.count, by_rank = !all && range.width > 0;
  // Values from `sure` on are selected, unless that is 0; those from `low` on may be.
  const uint32_t low = range.low, sure = all ? low : low + (1u << range.width);
  uint32_t chosen = 0, last = 0, num_sure = 0, num_equal = 0;
  const auto classify = [&] {
    chosen = last = 0;
    values.split(low, sure, chosen, last);
    if (all) chosen |= last, last = 0;
  };
  values.each_chunk([&] {
    classify();
    num_sure += __popc(chosen);
    num_equal += by_rank ? 0 : __popc(last);
    if (by_rank) list_for_ranking(team, values, last, first_ranked, first_of_part);
  });
  if (by_rank) rank(team, left, range.count, first_ranked, won, first_of_part);
  uint32_t place = 0, equal = 0;  // before the block
  if (team.num_blocks > 1) {
    uint2 sums = team.warps.share({__reduce_add_sync(~0u, num_sure), __reduce_add_sync(~0u, num_equal)});
    const bool is_warp = threadIdx.x % 32 < kTopKWarps;
    sums = {__reduce_add_sync(~0u, is_warp ? sums.x : 0) + s.num_won, __reduce_add_sync(~0u, is_warp ? sums.y : 0)};
    const uint2* of_blocks = team.share(sums);
#pragma unroll 1
    for (int b = 0; b < team.block; ++b) {
      place += of_blocks[b].x + min(of_blocks[b].y, left - min(left, equal));
      equal += of_blocks[b].y;
    }
  }
  values.each_chunk([&] {
    if (values.num_chunks() > 1) classify();
    if (by_rank) {
      last = 0;
      if (values.existing() != 0) chosen |= won[values.first / 32] >> values.first % 32 & values.existing();
    }
    // Chosen ones in the low half, equal ones in the high half; a chunk has less than 2^15.
    uint32_t total;
    const uint32_t before = team.warps.exclusive_scan(__popc(chosen) | __popc(last) << 16, total);
    const uint32_t first_equal = equal + (before >> 16);
    uint32_t to = place + (before & 0xffff) + min(first_equal, left) - min(equal, left);
    uint32_t taken = left - min(left, first_equal);
    uint32_t rest = chosen | last;
#pragma unroll 1
    for (; rest != 0; rest &= rest - 1) {
      if ((rest & -rest & last) != 0 && taken-- == 0) {
        taken = 0;
        continue;
      }
      write(to++, values.first + __ffs(static_cast<int>(rest)) - 1);
    }
    place += (total & 0xffff) + min(equal + (total >> 16), left) - min(equal, left);
    equal += total >> 16;
  });
}

}  // namespace deepinfer::cuda
