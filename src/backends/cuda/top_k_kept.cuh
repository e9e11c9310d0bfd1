// Selection from a row whose values, or the maxima that they come with, fit the registers of a block: each is read
// once.
//
// The k-th largest of the maxima of a partition into more than k parts is a bound that at least k values reach and few
// more do. Of those, a histogram finds the bin of the k-th largest, and what is in that bin is ranked by comparing all
// with all. Rows of so many ties that this does not settle them are left to select_row.
#pragma once

#include "backends/cuda/top_k_row.cuh"

namespace deepinfer::cuda::by_block {

inline constexpr int kRanked = 32;  // values, a lane each

struct KeptShared {
  alignas(16) uint32_t histogram[5][kBins];  // of the maxima of parts, then of ever smaller ranges of values
  uint64_t ranked[kRanked];
  uint32_t owners[kRanked];  // 32 * thread + its number of the key
  uint32_t won[kThreads];    // which of a thread's ranked keys are selected
  uint32_t of_warp[8][kWarps];
  uint32_t of_round[32][kWarps + 1];
  uint2 ranges[kWarps];
  int32_t runs[2 * kThreads];
  uint32_t num_ranked;
};

// Quad i of a thread is quad i * kThreads + threadIdx.x of the row, so that order is by i, then by thread.
template <int kQuads>
struct Kept {
  static_assert(kQuads <= 8);
  uint4 quads[kQuads];

  // May be called before `count` is known: reads what exists of the `capacity` values that may be read.
  __device__ __forceinline__ void load(const uint32_t* values, int capacity) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const int at = 4 * (i * kThreads + static_cast<int>(threadIdx.x));
      quads[i] = at < capacity ? *reinterpret_cast<const uint4*>(values + at) : uint4{};
    }
  }
  // What lies beyond the row becomes 0.
  __device__ __forceinline__ void cut(int count, bool newest_first) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const int last = count - 1 - 4 * (i * kThreads + static_cast<int>(threadIdx.x));
      if (last > 3) continue;
      const uint32_t newest = newest_first ? ~0u : 0;
      uint4& quad = quads[i];
      quad.x = last < 0 ? 0 : quad.x | (last == 0 ? newest : 0);
      quad.y = last < 1 ? 0 : quad.y | (last == 1 ? newest : 0);
      quad.z = last < 2 ? 0 : quad.z | (last == 2 ? newest : 0);
      quad.w = last < 3 ? 0 : quad.w | (last == 3 ? newest : 0);
    }
  }
};

template <>
struct Kept<0> {};

// A bound that at least k values reach, and the largest value; `best`: the largest of parts of the row, kParts a
// thread.
template <int kParts>
__device__ __forceinline__ uint2 bound_of(KeptShared& s, const uint32_t (&best)[kParts], uint32_t k) {
  uint32_t largest = 0, least = ~0u;
#pragma unroll
  for (int i = 0; i < kParts; ++i) largest = max(largest, best[i]), least = min(least, best[i]);
  // At least k parts reach the least of the threads' largest, or of all.
  const uint32_t low_own = k <= kThreads ? largest : least;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint2 of_warp = {__reduce_min_sync(~0u, low_own), __reduce_max_sync(~0u, largest)};
  if (lane == 0) s.ranges[warp] = of_warp;
  __syncthreads();
  const uint2 range = s.ranges[lane % kWarps];
  const uint32_t low = __reduce_min_sync(~0u, range.x), high = __reduce_max_sync(~0u, range.y);
  const int shift = max(0, 24 - __clz(static_cast<int>(high - low)));
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    if (best[i] >= low) atomicAdd(&s.histogram[0][(best[i] - low) >> shift], 1u);
  }
  __syncthreads();
  const Bin bin = find_bin(s.histogram[0], k, 0);
  return {low + (bin.digit << shift), high};
}

// Of the values in `keys`, which reach range.x and of which the largest is range.y, marks the k largest: bit i of the
// result stands for key i. False if ties leave it open. position(i): of key i in the row.
template <int kKeys, typename Key, typename Position>
__device__ __forceinline__ bool mark_largest(KeptShared& s, const Key& key, const Position& position, uint2 range,
                                             uint32_t k, uint32_t& chosen) {
  uint32_t low = range.x;
  int width = 32 - __clz(static_cast<int>(range.y - range.x)), shift;
  Bin bin = {};
  bool all;
#pragma unroll 1
  for (int turn = 1;; ++turn) {
    shift = max(0, width - 8);
    const uint32_t digits = 1u << (width - shift);
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const uint32_t value = key(i), digit = (value - low) >> shift;
      if (value >= low && digit < digits) atomicAdd(&s.histogram[turn][digit], 1u);
    }
    __syncthreads();
    bin = find_bin(s.histogram[turn], k, bin.above);
    low += bin.digit << shift;
    all = bin.above + bin.count == k;
    if (all || bin.count <= kRanked) break;
    if (shift == 0) return false;
    width = shift;
  }
  const uint32_t left = k - bin.above, size = 1u << shift;
  chosen = 0;
  uint32_t last = 0;
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    const uint32_t over = key(i) - low;
    if (key(i) < low) continue;
    if (over >= size || all) {
      chosen |= 1u << i;
    } else {
      last |= 1u << i;
    }
  }
  if (all) return true;
    // Values, larger ones first, of equal ones the lower position: all different.
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    if (!(last >> i & 1)) continue;
    const uint32_t slot = atomicAdd(&s.num_ranked, 1u);
    s.ranked[slot] = uint64_t{key(i)} << 32 | ~static_cast<uint32_t>(position(i));
    s.owners[slot] = threadIdx.x * 32 + i;
  }
  __syncthreads();
  // A warp takes a value or two, and tells the owner if it won.
  const int lane = threadIdx.x % 32;
  const uint64_t value = lane < bin.count ? s.ranked[lane] : 0;
  for (uint32_t i = threadIdx.x / 32; i < bin.count; i += kWarps) {
    const uint32_t higher = __popc(__ballot_sync(~0u, value > __shfl_sync(~0u, value, i)));
    if (lane == 0 && higher < left) atomicOr(&s.won[s.owners[i] / 32], 1u << s.owners[i] % 32);
  }
  __syncthreads();
  chosen |= s.won[threadIdx.x];
  return true;
}

// Calls write(place, i) for the marked ones of a thread's 4 * kQuads keys, places in the order of Kept.
template <int kQuads, typename Write>
__device__ __forceinline__ uint32_t write_marked(KeptShared& s, uint32_t marks, const Write& write) {
  constexpr int kWords = (kQuads + 3) / 4;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // Counts of a thread's quads, a byte each: at most 128 in a warp.
  uint32_t counts[kWords] = {}, sums[kWords];
#pragma unroll
  for (int i = 0; i < kQuads; ++i) counts[i / 4] |= __popc(marks >> 4 * i & 15) << 8 * (i % 4);
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    sums[w] = inclusive_scan_of_warp(counts[w], lane);
    const uint32_t totals = __shfl_sync(~0u, sums[w], 31);
    sums[w] -= counts[w];
    if (lane < 4 && 4 * w + lane < kQuads) s.of_warp[4 * w + lane][warp] = totals >> 8 * lane & 255;
  }
  __syncthreads();
  // Two quads' warps a lane.
  constexpr int kPairs = (kQuads + 1) / 2;
  uint32_t base = 0;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const bool exists = 2 * i + lane / 16 < kQuads;
    const uint32_t of_warp = exists ? s.of_warp[2 * i + lane / 16][lane % 16] : 0;
    const uint32_t first = __reduce_add_sync(~0u, lane < 16 ? of_warp : 0);
    const uint32_t second = __reduce_add_sync(~0u, lane < 16 ? 0 : of_warp);
    const uint32_t before_first = __reduce_add_sync(~0u, lane < warp ? of_warp : 0);
    const uint32_t before_second = __reduce_add_sync(~0u, lane >= 16 && lane - 16 < warp ? of_warp : 0);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int quad = 2 * i + h;
      if (quad >= kQuads) break;
      uint32_t to = base + (h == 0 ? before_first : first + before_second) + (sums[quad / 4] >> 8 * (quad % 4) & 255);
#pragma unroll 1
      for (uint32_t rest = marks >> 4 * quad & 15; rest != 0; rest &= rest - 1) {
        write(to++, 4 * quad + __ffs(static_cast<int>(rest)) - 1);
      }
    }
    base += first + second;
  }
  return base;
}

// The k largest of what lies in the first num_runs of s.runs and reaches range.x. False: nothing was written.
__device__ __forceinline__ bool select_from_runs(KeptShared& s, WarpValues<kWarps>& warps, const Row& row,
                                                 uint32_t num_runs, uint2 range, uint32_t k, const Output& out) {
  if (num_runs > 2 * kThreads) return false;
  __syncthreads();
  // Two runs a thread.
  uint32_t keys[2 * kMaximaRows];
  int base[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const uint32_t j = 2 * threadIdx.x + e;
    base[e] = j < num_runs ? s.runs[j] * kMaximaRows : row.count;
    const auto* from = reinterpret_cast<const uint4*>(row.values + base[e]);
    const uint4 a = j < num_runs ? from[0] : uint4{}, b = j < num_runs ? from[1] : uint4{};
#pragma unroll
    for (int v = 0; v < kMaximaRows; ++v) {
      keys[e * kMaximaRows + v] = base[e] + v < row.count ? value_of(v < 4 ? a : b, v % 4) : 0;
    }
  }
  const auto key = [&](int i) { return keys[i]; };
  const auto position = [&](int i) { return base[i / kMaximaRows] + i % kMaximaRows; };
  uint32_t chosen, total;
  if (!mark_largest<2 * kMaximaRows>(s, key, position, range, k, chosen)) return false;
  uint32_t to = warps.exclusive_scan(__popc(chosen), total);
#pragma unroll 1
  for (; chosen != 0; chosen &= chosen - 1) {
    const int i = __ffs(static_cast<int>(chosen)) - 1;
    out.write(to++, (i < kMaximaRows ? base[0] : base[1]) + i % kMaximaRows);
  }
  return true;
}

// False: nothing was written.
template <int kRun, int kParts, int kQuads>
__device__ __forceinline__ bool select_kept(KeptShared& s, WarpValues<kWarps>& warps, const Row& row,
                                            const Kept<kQuads>& kept, uint32_t k, const Output& out) {
  const auto key = [&](int i) { return value_of(kept.quads[i / 4], i % 4); };
  const auto position = [](int i) { return 4 * (i / 4 * kThreads + static_cast<int>(threadIdx.x)) + i % 4; };
  uint32_t best[kParts] = {};
#pragma unroll
  for (int i = 0; i < 4 * kQuads; ++i) best[i % kParts] = max(best[i % kParts], key(i));
  const uint2 range = bound_of(s, best, k);
  if constexpr (kRun == 1) {
    uint32_t chosen;
    if (!mark_largest<4 * kQuads>(s, key, position, range, k, chosen)) return false;
    write_marked<kQuads>(s, chosen, [&](uint32_t to, int i) { out.write(to, position(i)); });
    return true;
  }
  const int num_maxima = (row.count + kRun - 1) / kRun;
  uint32_t reaching = 0;
#pragma unroll
  for (int i = 0; i < 4 * kQuads; ++i) reaching |= uint32_t{key(i) >= range.x && position(i) < num_maxima} << i;
  const uint32_t num_runs = write_marked<kQuads>(s, reaching, [&](uint32_t to, int i) {
    if (to < 2 * kThreads) s.runs[to] = position(i);
  });
  return select_from_runs(s, warps, row, num_runs, range, k, out);
}

}  // namespace deepinfer::cuda::by_block
