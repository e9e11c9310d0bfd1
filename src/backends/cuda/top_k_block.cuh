// What a block of threads selects with: counts by digit, sums in the order of threads, values placed in order.
#pragma once

#include "backends/cuda/top_k.cuh"
#include "backends/cuda/top_k_scan.cuh"

namespace deepinfer::cuda::by_block {

inline constexpr int kThreads = 512;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kListed = 4096;  // gathered runs, and gathered values, of a row
inline constexpr int kBins = 256;

struct Shared {
  uint32_t keys[kListed];
  int32_t positions[kListed];
  int32_t runs[kListed];
  alignas(16) uint32_t histogram[3][kBins];
  uint2 warp_values[2][kWarps];
};

// The threads of a block and what they count with.
struct Block {
  Shared& s;
  WarpValues<kWarps> warps{s.warp_values};
  uint32_t histogram_turn = 0;
};

// Bins 8 * lane .. 8 * lane + 7 of a histogram, and which bin holds the k-th value from the top if `above` lie higher.
struct Bin {
  uint32_t digit, above, count;
};
__device__ inline Bin find_bin(const uint32_t* histogram, uint32_t k, uint32_t above) {
  const int lane = threadIdx.x % 32;
  const uint4 low = reinterpret_cast<const uint4*>(histogram)[2 * lane];
  const uint4 high = reinterpret_cast<const uint4*>(histogram)[2 * lane + 1];
  const uint32_t counts[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  const uint32_t own = low.x + low.y + low.z + low.w + high.x + high.y + high.z + high.w;
  uint32_t sum = own;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const uint32_t other = __shfl_down_sync(~0u, sum, d);
    if (lane + d < 32) sum += other;
  }
  uint32_t before = above + sum - own;
  const uint32_t holder = __ffs(__ballot_sync(~0u, before < k && before + own >= k)) - 1;
  uint32_t digit = 0, count = 0;
  bool found = false;
#pragma unroll
  for (int b = 7; b >= 0; --b) {
    if (found) continue;
    digit = b;
    count = counts[b];
    found = before + count >= k;
    if (!found) before += count;
  }
  return {__shfl_sync(~0u, 8 * lane + digit, holder), __shfl_sync(~0u, before, holder),
          __shfl_sync(~0u, count, holder)};
}

// A threshold among the threads' keys: `above` of them are above the values that it stands for, `count` are of these.
// Unless above + count <= enough, the threshold is the k-th largest key and stands for itself alone; else it stands for
// all values from it to where the `above` begin. Of thread i, key j exists if i + j * kThreads < num_keys; k of them
// do.
template <int kKeys>
__device__ Bin find_threshold(Block& block, const uint32_t (&keys)[kKeys], int num_keys, uint32_t k, uint32_t enough) {
  const auto exists = [&](int j) { return static_cast<int>(threadIdx.x) + j * kThreads < num_keys; };
  uint32_t least = ~0u, largest = 0;
#pragma unroll
  for (int j = 0; j < kKeys; ++j) {
    if (!exists(j)) continue;
    least = min(least, keys[j]);
    largest = max(largest, keys[j]);
  }
  const uint2 range = block.warps.share({__reduce_min_sync(~0u, least), __reduce_max_sync(~0u, largest)});
  least = __reduce_min_sync(~0u, range.x);
  largest = __reduce_max_sync(~0u, range.y);
  if (least == largest) return {least, 0, static_cast<uint32_t>(num_keys)};

  // Digits of the distance from the least: they spread where the keys' own, being floats, would share an exponent.
  int width = 32 - __clz(largest - least);
  uint32_t threshold = least;
  Bin bin = {};
  while (width > 0) {
    const int shift = max(width - 8, 0);
    Shared& s = block.s;
    const uint32_t turn = block.histogram_turn++ % 3;
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      const uint32_t digit = (keys[j] - threshold) >> shift;
      if (exists(j) && keys[j] >= threshold && digit < 1u << (width - shift)) atomicAdd(&s.histogram[turn][digit], 1u);
    }
    __syncthreads();
    if (threadIdx.x < kBins) s.histogram[(turn + 2) % 3][threadIdx.x] = 0;  // was read before this barrier
    bin = find_bin(s.histogram[turn], k, bin.above);
    threshold += bin.digit << shift;
    width = shift;
    if (bin.above + bin.count <= enough) break;
  }
  return {threshold, bin.above, bin.count};
}

struct Output {
  const TopKParams& p;
  int64_t token;
  int32_t* selected;

  __device__ void write(uint32_t place, int i) const {
    selected[place] = p.of_blocks ? i : static_cast<int32_t>(p.choice.row(token, i));
  }
};

// Writes, of key(0) .. key(n - 1), those above the threshold and the first `ties` equal to it; position(i) is what is
// written.
template <int kEach, typename Key, typename Position>
__device__ void place(Block& block, int n, uint32_t threshold, uint32_t ties, const Key& key, const Position& position,
                      const Output& out) {
  uint32_t written = 0, ties_seen = 0;
  for (int begin = 0; begin < n; begin += kThreads * kEach) {
    const int first = begin + threadIdx.x * kEach;
    uint32_t keys[kEach];
    uint32_t packed = 0;  // greater in the low half, equal in the high half
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      keys[j] = first + j < n ? key(first + j) : 0;
      if (first + j < n) packed += keys[j] > threshold ? 1u : keys[j] == threshold ? 0x10000u : 0u;
    }
    uint32_t total;
    const uint32_t before = block.warps.exclusive_scan(packed, total);
    uint32_t greater = written + (before & 0xffff), equal = ties_seen + (before >> 16);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (first + j >= n) break;
      const bool is_greater = keys[j] > threshold, is_equal = keys[j] == threshold;
      if (is_greater || (is_equal && equal < ties)) out.write(greater + min(equal, ties), position(first + j));
      greater += is_greater;
      equal += is_equal;
    }
    written += total & 0xffff;
    ties_seen += total >> 16;
  }
}

}  // namespace deepinfer::cuda::by_block
