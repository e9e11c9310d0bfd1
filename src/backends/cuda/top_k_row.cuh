// Selection from one row by a block of threads.
#pragma once

#include "backends/cuda/top_k_block.cuh"

namespace deepinfer::cuda::by_block {

// The values a row's selection is made of.
struct Row {
  const uint32_t* values;
  int count;
  bool newest_first;  // the last value counts as the largest

  __device__ uint32_t operator()(int i) const { return newest_first && i == count - 1 ? ~0u : values[i]; }
};

// Reads the row four times for the k-th largest value, and once more for the output: for rows of many ties.
__device__ inline void select_by_radix(Block& block, const Row& row, uint32_t k, const Output& out) {
  Shared& s = block.s;
  uint32_t threshold = 0, mask = 0;
  Bin bin = {};
  for (int shift = 24; shift >= 0; shift -= 8) {
    __syncthreads();
    if (threadIdx.x < kBins) s.histogram[0][threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < row.count; i += kThreads) {
      const uint32_t key = row(i);
      if ((key & mask) == threshold) atomicAdd(&s.histogram[0][key >> shift & (kBins - 1)], 1u);
    }
    __syncthreads();
    bin = find_bin(s.histogram[0], k, bin.above);
    threshold |= bin.digit << shift;
    mask |= 255u << shift;
  }
  place<4>(
      block, row.count, threshold, k - bin.above, row, [](int i) { return i; }, out);
}

// Exact threshold among the first `n` gathered values, then the output.
template <int kKeys>
__device__ void select_gathered(Block& block, int n, uint32_t k, const Output& out) {
  const Shared& s = block.s;
  uint32_t keys[kKeys];
#pragma unroll
  for (int j = 0; j < kKeys; ++j) {
    const int at = threadIdx.x + j * kThreads;
    keys[j] = at < n ? s.keys[at] : 0;
  }
  const Bin found = find_threshold<kKeys>(block, keys, n, k, k);
  // If just k values reach the threshold, it may stand for several of them: the one below it decides as well.
  const bool all = found.above + found.count == k && found.digit > 0;
  place<kKeys>(
      block, n, all ? found.digit - 1 : found.digit, all ? 0 : k - found.above, [&](int i) { return s.keys[i]; },
      [&](int i) { return s.positions[i]; }, out);
}

// The maxima that a row's values come with, or the values themselves; read four at a time by warps, each of which has
// a range of its own, so that reading is coalesced and what a warp finds lies before what the next one does.
struct Quads {
  static constexpr int kAtOnce = 4;
  const uint32_t* values;
  int count;
  bool newest_first;
  int rounds;  // quads of a thread

  __device__ Quads(const uint32_t* v, int n, bool newest) : values(v), count(n), newest_first(newest) {
    rounds = (n + 4 * kThreads - 1) / (4 * kThreads);
  }
  // Index of the first value of quad `i` of the thread; beyond the row if there is no such quad.
  __device__ int first(int i) const {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    return i < rounds ? ((warp * rounds + i) * 32 + lane) * 4 : count;
  }
  // Values beyond the row are 0.
  __device__ uint4 load(int at) const {
    if (at >= count) return {};
    uint4 quad = *reinterpret_cast<const uint4*>(values + at);
    const int last = count - 1 - at;
    if (last < 4) {
      const uint32_t newest = newest_first ? ~0u : 0;
      quad.x |= last == 0 ? newest : 0;
      quad.y = last < 1 ? 0 : quad.y | (last == 1 ? newest : 0);
      quad.z = last < 2 ? 0 : quad.z | (last == 2 ? newest : 0);
      quad.w = last < 3 ? 0 : quad.w | (last == 3 ? newest : 0);
    }
    return quad;
  }
  // Bits 4j + c: value c of quad i + j reaches the bound and exists.
  __device__ uint32_t reaching(int i, uint32_t bound, uint4 (&quads)[kAtOnce]) const;
};

// Bit c: value c of the quad reaches the bound and is one of the `left` that exist.
__device__ __forceinline__ uint32_t reaching_of(const uint4& quad, uint32_t bound, int left) {
  const uint32_t bits = (quad.x >= bound) | (quad.y >= bound) << 1 | (quad.z >= bound) << 2 | (quad.w >= bound) << 3;
  return left >= 4 ? bits : left <= 0 ? 0 : bits & ((1u << left) - 1);
}

__device__ __forceinline__ uint32_t Quads::reaching(int i, uint32_t bound, uint4 (&quads)[kAtOnce]) const {
#pragma unroll
  for (int j = 0; j < kAtOnce; ++j) quads[j] = load(first(i + j));
  uint32_t bits = 0;
#pragma unroll
  for (int j = 0; j < kAtOnce; ++j) bits |= reaching_of(quads[j], bound, count - first(i + j)) << 4 * j;
  return bits;
}

__device__ __forceinline__ uint32_t value_of(const uint4& quad, int i) {
  return i == 0 ? quad.x : i == 1 ? quad.y : i == 2 ? quad.z : quad.w;
}

// A bound that at least k of the values reach: the k-th largest of the maxima of kParts parts a thread.
template <int kParts>
__device__ uint32_t bound_of_parts(Block& block, const Quads& quads, uint32_t k) {
  uint32_t best[kParts] = {};
  for (int i = 0; i < quads.rounds; i += Quads::kAtOnce) {
    uint4 four[Quads::kAtOnce];
#pragma unroll
    for (int j = 0; j < Quads::kAtOnce; ++j) four[j] = quads.load(quads.first(i + j));
#pragma unroll
    for (int j = 0; j < 4 * Quads::kAtOnce; ++j) best[j % kParts] = max(best[j % kParts], value_of(four[j / 4], j % 4));
  }
  return find_threshold<kParts>(block, best, kParts * kThreads, k, k + k / 16).digit;
}

// Calls write(place, index, value) for all values that reach the bound, in order, and returns how many there are. If
// there are more than kListed, nothing is called.
template <typename Write>
__device__ uint32_t list_reaching(Block& block, const Quads& quads, uint32_t bound, const Write& write) {
  constexpr int kAtOnce = Quads::kAtOnce;
  const int lane = threadIdx.x % 32;
  uint4 four[kAtOnce];
  uint32_t mine = 0;
  for (int i = 0; i < quads.rounds; i += kAtOnce) mine += __popc(quads.reaching(i, bound, four));
  const uint32_t of_warp = block.warps.share({__reduce_add_sync(~0u, mine), 0}).x;
  const uint32_t total = __reduce_add_sync(~0u, lane < kWarps ? of_warp : 0);
  uint32_t base = __reduce_add_sync(~0u, lane < static_cast<int>(threadIdx.x) / 32 ? of_warp : 0);
  if (total > kListed) return total;
  for (int i = 0; i < quads.rounds; i += kAtOnce) {
    const uint32_t bits = quads.reaching(i, bound, four);
    if (!__any_sync(~0u, bits)) continue;
    // Counts of the four rounds, a byte each: at most 128 in a warp.
    uint32_t counts = 0;
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) counts |= __popc(bits >> 4 * j & 15) << 8 * j;
    uint32_t sums = inclusive_scan_of_warp(counts, lane);
    const uint32_t totals = __shfl_sync(~0u, sums, 31);
    sums -= counts;
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      uint32_t to = base + (sums >> 8 * j & 255);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if (bits >> (4 * j + c) & 1) write(to++, quads.first(i + j) + c, value_of(four[j], c));
      }
      base += totals >> 8 * j & 255;
    }
  }
  __syncthreads();
  return total;
}

// From s.runs, the values of `num_runs` runs that reach the bound, in order. Returns how many, or more than kListed.
__device__ inline uint32_t gather_runs(Block& block, const Row& row, uint32_t num_runs, uint32_t bound) {
  constexpr int kEach = 2;
  Shared& s = block.s;
  uint32_t gathered = 0;
  for (uint32_t first = 0; first < num_runs; first += kThreads * kEach) {
    uint4 quads[kEach][2] = {};
    int base[kEach] = {};
    uint32_t bits[kEach] = {};
    uint32_t mine = 0;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const uint32_t j = first + threadIdx.x * kEach + e;
      if (j >= num_runs) continue;
      base[e] = s.runs[j] * kMaximaRows;
      const auto* from = reinterpret_cast<const uint4*>(row.values + base[e]);
      quads[e][0] = from[0];
      quads[e][1] = from[1];
    }
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int left = first + threadIdx.x * kEach + e < num_runs ? row.count - base[e] : 0;
      bits[e] = reaching_of(quads[e][0], bound, left) | reaching_of(quads[e][1], bound, left - 4) << 4;
      mine += __popc(bits[e]);
    }
    uint32_t sum;
    uint32_t to = gathered + block.warps.exclusive_scan(mine, sum);
    gathered += sum;
    if (gathered > kListed) return gathered;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
#pragma unroll
      for (int v = 0; v < kMaximaRows; ++v) {
        if (!(bits[e] >> v & 1)) continue;
        s.keys[to] = value_of(quads[e][v / 4], v % 4);
        s.positions[to++] = base[e] + v;
      }
    }
  }
  __syncthreads();
  return gathered;
}

// kRun: how many values share a maximum; 1: values only.
template <int kRun, int kParts>
__device__ void select_row(Block& block, const Row& row, const uint32_t* maxima, uint32_t k, const Output& out) {
  Shared& s = block.s;
  const Quads quads(kRun == 1 ? row.values : maxima, (row.count + kRun - 1) / kRun, row.newest_first);
  const uint32_t bound = k > kParts * kThreads ? 0 : bound_of_parts<kParts>(block, quads, k);
  uint32_t gathered;
  if constexpr (kRun == 1) {
    gathered = list_reaching(block, quads, bound, [&](uint32_t to, int index, uint32_t value) {
      s.keys[to] = value;
      s.positions[to] = index;
    });
  } else {
    gathered = list_reaching(block, quads, bound, [&](uint32_t to, int index, uint32_t) { s.runs[to] = index; });
    if (gathered <= kListed) gathered = gather_runs(block, row, gathered, bound);
  }
  if (gathered > kListed) return select_by_radix(block, row, k, out);
  const int n = static_cast<int>(gathered);
  if (n <= 2 * kThreads) return select_gathered<2>(block, n, k, out);
  select_gathered<kListed / kThreads>(block, n, k, out);
}

}  // namespace deepinfer::cuda::by_block
