#include "backends/cuda/top_k.cuh"

#include <algorithm>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/launch.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kListed = 4096;  // gathered runs, and gathered values, of a row
constexpr int kBins = 256;

struct Shared {
  uint32_t keys[kListed];
  int32_t positions[kListed];
  int32_t runs[kListed];
  alignas(16) uint32_t histogram[3][kBins];
  uint2 warp_values[2][kWarps];
};

// The threads of a block and what they count with. Buffers alternate, so that one barrier a step is enough: whoever
// writes a buffer again has passed a barrier that everybody reached after reading it.
struct Block {
  Shared& s;
  uint32_t turn = 0;
  uint32_t histogram_turn = 0;

  // Everybody's copy of what the warps' first lanes give, by warp; lanes beyond kWarps repeat it.
  __device__ uint2 share(uint2 of_warp) {
    uint2* values = s.warp_values[turn++ & 1];
    if (threadIdx.x % 32 == 0) values[threadIdx.x / 32] = of_warp;
    __syncthreads();
    return values[threadIdx.x % kWarps];
  }
  // The sum of `value` over the threads before this one; `total` over all.
  __device__ uint32_t exclusive_scan(uint32_t value, uint32_t& total) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t sum = value;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const uint32_t other = __shfl_up_sync(~0u, sum, d);
      if (lane >= d) sum += other;
    }
    const uint32_t of_warp = share({__shfl_sync(~0u, sum, 31), 0}).x;
    total = __reduce_add_sync(~0u, lane < kWarps ? of_warp : 0);
    return sum - value + __reduce_add_sync(~0u, lane < warp ? of_warp : 0);
  }
};

// Bins 8 * lane .. 8 * lane + 7 of a histogram, and which bin holds the k-th value from the top if `above` lie higher.
struct Bin {
  uint32_t digit, above, count;
};
__device__ Bin find_bin(const uint32_t* histogram, uint32_t k, uint32_t above) {
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
  const uint2 range = block.share({__reduce_min_sync(~0u, least), __reduce_max_sync(~0u, largest)});
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

// The values a row's selection is made of.
struct Row {
  const uint32_t* values;
  int count;
  bool newest_first;  // the last value counts as the largest

  __device__ uint32_t operator()(int i) const { return newest_first && i == count - 1 ? ~0u : values[i]; }
};

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
    const uint32_t before = block.exclusive_scan(packed, total);
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

// Reads the row four times for the k-th largest value, and once more for the output: for rows of many ties.
__device__ void select_by_radix(Block& block, const Row& row, uint32_t k, const Output& out) {
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
  const uint32_t of_warp = block.share({__reduce_add_sync(~0u, mine), 0}).x;
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
    uint32_t sums = counts;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const uint32_t other = __shfl_up_sync(~0u, sums, d);
      if (lane >= d) sums += other;
    }
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
__device__ uint32_t gather_runs(Block& block, const Row& row, uint32_t num_runs, uint32_t bound) {
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
    uint32_t to = gathered + block.exclusive_scan(mine, sum);
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

template <int kRun, int kParts>
__global__ void __launch_bounds__(kThreads, 2) top_k_kernel(const TopKParams p) {
  extern __shared__ __align__(16) std::byte memory[];
  Block block{*reinterpret_cast<Shared*>(memory)};
  for (int i = threadIdx.x; i < 3 * kBins; i += kThreads) block.s.histogram[0][i] = 0;
  wait_for_kernel_before();
  const int64_t token = p.scores.first + blockIdx.x;
  int count = static_cast<int>(p.of_blocks ? p.choice.visible(token) : p.choice.count(token));
  if (p.of_blocks) count = (count + p.block_size - 1) / p.block_size;
  const int k = static_cast<int>(min(p.k, int64_t{count}));
  if (threadIdx.x == 0) p.num_selected[token] = k;
  const Output out{p, token, p.selected + token * p.selected_stride};
  if (count <= p.k) {
    for (int i = threadIdx.x; i < count; i += kThreads) out.write(i, i);
    return;
  }
  if (k == 0) return;
  const uint32_t* maxima = p.scores.maxima == nullptr ? nullptr : p.scores.maxima_of(token);
  const Row row{p.of_blocks ? maxima : p.scores.of(token), count, p.of_blocks};
  select_row<kRun, kParts>(block, row, maxima, static_cast<uint32_t>(k), out);
}

template <int kRun, int kParts>
void launch_kernel(Stream& stream, const TopKParams& p) {
  static const bool ready = [] {
    DI_CUDA_CHECK(
        cudaFuncSetAttribute(top_k_kernel<kRun, kParts>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)));
    return true;
  }();
  static_cast<void>(ready);
  launch(stream, Start::kEarly, dim3(static_cast<unsigned>(p.scores.rows)), kThreads, sizeof(Shared),
         top_k_kernel<kRun, kParts>, p);
}

}  // namespace

void launch_top_k(Stream& stream, const TopKParams& p, int64_t max_count) {
  if (p.scores.rows == 0) return;
  // Values of a short row are read directly.
  const bool by_runs = p.has_maxima && !p.of_blocks && max_count > 16384;
  const bool few = p.k <= kThreads;
  if (by_runs) return few ? launch_kernel<kMaximaRows, 2>(stream, p) : launch_kernel<kMaximaRows, 8>(stream, p);
  return few ? launch_kernel<1, 2>(stream, p) : launch_kernel<1, 8>(stream, p);
}

}  // namespace deepinfer::cuda
