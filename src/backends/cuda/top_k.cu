#include "backends/cuda/top_k.cuh"

#include <algorithm>

#include "backends/cuda/cuda_check.h"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kListed = 4096;  // gathered runs, and gathered values, of a row

struct Shared {
  uint32_t keys[kListed];
  int32_t positions[kListed];
  int32_t runs[kListed];
  uint32_t histogram[256];
  uint32_t warp_sums[kWarps];
  uint2 warp_counts[2][kWarps];
  uint32_t broadcast[2];
};

// The sum of `value` over the threads before this one; `total` over all.
__device__ uint32_t exclusive_scan(Shared& s, uint32_t value, uint32_t& total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t sum = value;
  for (int d = 1; d < 32; d *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, sum, d);
    if (lane >= d) sum += other;
  }
  __syncthreads();  // whoever still reads the sums of the call before
  if (lane == 31) s.warp_sums[warp] = sum;
  __syncthreads();
  const uint32_t of_warp = s.warp_sums[lane % kWarps];
  total = __reduce_add_sync(~0u, lane < kWarps ? of_warp : 0);
  return sum - value + __reduce_add_sync(~0u, lane < warp ? of_warp : 0);
}

// Sums over the threads; `turn` alternates between calls.
__device__ uint2 sum_all(Shared& s, uint2 value, int turn) {
  const uint2 of_warp = {__reduce_add_sync(~0u, value.x), __reduce_add_sync(~0u, value.y)};
  if (threadIdx.x % 32 == 0) s.warp_counts[turn][threadIdx.x / 32] = of_warp;
  __syncthreads();
  const int lane = threadIdx.x % 32;
  const uint2 sum = s.warp_counts[turn][lane % kWarps];
  return {__reduce_add_sync(~0u, lane < kWarps ? sum.x : 0), __reduce_add_sync(~0u, lane < kWarps ? sum.y : 0)};
}

// The least and the largest over the threads.
__device__ uint2 range_of_all(Shared& s, uint32_t least, uint32_t largest) {
  const uint2 of_warp = {__reduce_min_sync(~0u, least), __reduce_max_sync(~0u, largest)};
  __syncthreads();
  if (threadIdx.x % 32 == 0) s.warp_counts[0][threadIdx.x / 32] = of_warp;
  __syncthreads();
  const uint2 range = s.warp_counts[0][threadIdx.x % kWarps];
  return {__reduce_min_sync(~0u, range.x), __reduce_max_sync(~0u, range.y)};
}

// The largest t that at least `k` of the threads' `keys` reach, or a smaller one that at most `enough` do. The threads
// hold at least k keys; of thread i, key j is one of them if i + j * kThreads < num_keys. Two bits a turn.
template <int kKeys>
__device__ uint32_t find_bound(Shared& s, const uint32_t (&keys)[kKeys], int num_keys, uint32_t k, uint32_t enough) {
  uint32_t least = 0xffffffffu, largest = 0;
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    if (static_cast<int>(threadIdx.x) + i * kThreads >= num_keys) continue;
    least = min(least, keys[i]);
    largest = max(largest, keys[i]);
  }
  const uint2 range = range_of_all(s, least, largest);
  if (range.x == range.y) {
    __syncthreads();
    return range.x;
  }
  const int first = (31 - __clz(range.x ^ range.y)) & ~1;
  uint32_t bound = first == 30 ? 0 : range.x >> (first + 2) << (first + 2);
  for (int shift = first, turn = 1; shift >= 0; shift -= 2, turn ^= 1) {
    uint2 counts = {};
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      if (static_cast<int>(threadIdx.x) + i * kThreads >= num_keys) continue;
      counts.x += keys[i] >= (bound | 1u << shift);
      counts.x += keys[i] >= (bound | 2u << shift) ? 0x10000u : 0;
      counts.y += keys[i] >= (bound | 3u << shift);
    }
    counts = sum_all(s, counts, turn);
    const uint32_t reached[3] = {counts.x & 0xffff, counts.x >> 16, counts.y};
    const int digit = reached[2] >= k ? 3 : reached[1] >= k ? 2 : reached[0] >= k ? 1 : 0;
    if (digit == 0) continue;
    bound |= static_cast<uint32_t>(digit) << shift;
    if (reached[digit - 1] <= enough) break;
  }
  __syncthreads();
  return bound;
}

// The values a row's selection is made of.
struct Row {
  const uint32_t* values;
  int64_t count;
  bool newest_first;  // the last value counts as the largest

  __device__ uint32_t operator()(int64_t i) const {
    return newest_first && i == count - 1 ? 0xffffffffu : values[i];
  }
};

struct Output {
  const TopKParams& p;
  int64_t token;

  __device__ void write(uint32_t place, int64_t i) const {
    p.selected[token * p.selected_stride + place] =
        static_cast<int32_t>(p.of_blocks ? i : p.choice.row(token, i));
  }
};

// Writes, of key(0) .. key(n - 1), those above the threshold and the first `ties` equal to it; position(i) is what is
// written.
template <typename Key, typename Position>
__device__ void place(Shared& s, int64_t n, uint32_t threshold, uint32_t ties, const Key& key,
                      const Position& position, const Output& out) {
  constexpr int kEach = 4;
  uint32_t written = 0, ties_seen = 0;
  for (int64_t begin = 0; begin < n; begin += kThreads * kEach) {
    uint32_t keys[kEach];
    uint32_t packed = 0;  // greater in the low half, equal in the high half
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int64_t i = begin + threadIdx.x * kEach + j;
      keys[j] = i < n ? key(i) : 0;
      if (i < n) packed += keys[j] > threshold ? 1u : keys[j] == threshold ? 0x10000u : 0u;
    }
    uint32_t total;
    const uint32_t before = exclusive_scan(s, packed, total);
    uint32_t greater = written + (before & 0xffff), equal = ties_seen + (before >> 16);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int64_t i = begin + threadIdx.x * kEach + j;
      if (i >= n) break;
      const bool is_greater = keys[j] > threshold, is_equal = keys[j] == threshold;
      if (is_greater || (is_equal && equal < ties)) out.write(greater + min(equal, ties), position(i));
      greater += is_greater;
      equal += is_equal;
    }
    written += total & 0xffff;
    ties_seen += total >> 16;
  }
}

// The k-th largest value of the row, a byte at a time from the top, and how many values are above it.
__device__ uint32_t radix_threshold(Shared& s, const Row& row, uint32_t k, uint32_t& greater) {
  uint32_t prefix = 0, mask = 0;
  greater = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (threadIdx.x < 256) s.histogram[threadIdx.x] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < row.count; i += kThreads) {
      const uint32_t key = row(i);
      if ((key & mask) == prefix) atomicAdd(&s.histogram[key >> shift & 255], 1u);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      uint32_t digit = 255;
      while (greater + s.histogram[digit] < k) greater += s.histogram[digit--];
      s.broadcast[0] = digit;
      s.broadcast[1] = greater;
    }
    __syncthreads();
    prefix |= s.broadcast[0] << shift;
    mask |= 255u << shift;
    greater = s.broadcast[1];
  }
  return prefix;
}

__device__ void select_by_radix(Shared& s, const Row& row, uint32_t k, const Output& out) {
  uint32_t greater;
  const uint32_t threshold = radix_threshold(s, row, k, greater);
  place(s, row.count, threshold, k - greater, row, [](int64_t i) { return i; }, out);
}

// Exact threshold among the first `n` gathered values, then the output.
template <int kKeys>
__device__ void select_gathered(Shared& s, int n, uint32_t k, const Output& out) {
  uint32_t keys[kKeys];
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    const int at = threadIdx.x + i * kThreads;
    keys[i] = at < n ? s.keys[at] : 0;
  }
  const uint32_t threshold = find_bound<kKeys>(s, keys, n, k, k);
  uint2 greater = {};
#pragma unroll
  for (int i = 0; i < kKeys; ++i) greater.y += keys[i] > threshold;
  greater = sum_all(s, greater, 0);
  place(
      s, n, threshold, k - greater.y, [&](int64_t i) { return s.keys[i]; }, [&](int64_t i) { return s.positions[i]; },
      out);
}

// The maxima that a row's values come with, or the values themselves; read four at a time by warps, each of which has
// a range of its own, so that reading is coalesced and what a warp finds lies before what the next one does.
struct Quads {
  const uint32_t* values;
  int64_t count;
  bool newest_first;
  int64_t of_warp;  // quads; a multiple of 32

  __device__ Quads(const uint32_t* v, int64_t n, bool newest) : values(v), count(n), newest_first(newest) {
    of_warp = ((n + 3) / 4 + kThreads - 1) / kThreads * 32;
  }
  // Index of the first value of quad `i` of the thread.
  __device__ int64_t first(int64_t i) const { return (threadIdx.x / 32 * of_warp + i * 32 + threadIdx.x % 32) * 4; }
  // Values beyond the row are 0.
  __device__ uint4 load(int64_t at) const {
    if (at >= count) return {};
    uint4 quad = *reinterpret_cast<const uint4*>(values + at);
    const int64_t last = count - 1 - at;
    if (last < 4) {
      const uint32_t newest = newest_first ? ~0u : 0;
      quad.x |= last == 0 ? newest : 0;
      quad.y = last < 1 ? 0 : quad.y | (last == 1 ? newest : 0);
      quad.z = last < 2 ? 0 : quad.z | (last == 2 ? newest : 0);
      quad.w = last < 3 ? 0 : quad.w | (last == 3 ? newest : 0);
    }
    return quad;
  }
};

// Bit j: value j of the quad reaches the bound and exists.
__device__ __forceinline__ uint32_t reaching(const uint4& quad, uint32_t bound, int64_t left) {
  const uint32_t bits = (quad.x >= bound) | (quad.y >= bound) << 1 | (quad.z >= bound) << 2 | (quad.w >= bound) << 3;
  return left >= 4 ? bits : left <= 0 ? 0 : bits & ((1u << left) - 1);
}

// A bound that at least k of the values reach: the k-th largest of the maxima of kParts parts a thread.
template <int kParts>
__device__ uint32_t bound_of_parts(Shared& s, const Quads& quads, uint32_t k) {
  uint32_t best[kParts] = {};
  constexpr int kAtOnce = 4;
  for (int64_t i = 0; i < quads.of_warp / 32; i += kAtOnce) {
    uint4 four[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      four[j] = i + j < quads.of_warp / 32 ? quads.load(quads.first(i + j)) : uint4{};
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int at = j * 4;
      best[at % kParts] = max(best[at % kParts], four[j].x);
      best[(at + 1) % kParts] = max(best[(at + 1) % kParts], four[j].y);
      best[(at + 2) % kParts] = max(best[(at + 2) % kParts], four[j].z);
      best[(at + 3) % kParts] = max(best[(at + 3) % kParts], four[j].w);
    }
  }
  return find_bound<kParts>(s, best, kParts * kThreads, k, k + k / 16);
}

// Calls write(place, index, value) for all values that reach the bound, in order, and returns how many there are. If
// there are more than kListed, nothing is called.
template <typename Write>
__device__ uint32_t list_reaching(Shared& s, const Quads& quads, uint32_t bound, const Write& write) {
  const int lane = threadIdx.x % 32;
  uint32_t mine = 0;
#pragma unroll 4
  for (int64_t i = 0; i < quads.of_warp / 32; ++i) {
    const int64_t at = quads.first(i);
    mine += __popc(reaching(quads.load(at), bound, quads.count - at));
  }
  // The scan is over threads; what counts is the warp's first.
  uint32_t total;
  uint32_t base = __shfl_sync(~0u, exclusive_scan(s, mine, total), 0);
  if (total > kListed) return total;
#pragma unroll 4
  for (int64_t i = 0; i < quads.of_warp / 32; ++i) {
    const int64_t at = quads.first(i);
    const uint4 quad = quads.load(at);
    const uint32_t bits = reaching(quad, bound, quads.count - at);
    if (!__any_sync(~0u, bits)) continue;
    const uint32_t lower = (1u << lane) - 1;
    uint32_t before = 0, all = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t votes = __ballot_sync(~0u, bits >> j & 1);
      before += __popc(votes & lower);
      all += __popc(votes);
    }
    uint32_t to = base + before;
    const uint32_t values[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (bits >> j & 1) write(to++, static_cast<int32_t>(at + j), values[j]);
    }
    base += all;
  }
  __syncthreads();
  return total;
}

// From s.runs, the values of `num_runs` runs that reach the bound, in order. Returns how many, or more than kListed.
__device__ uint32_t gather_runs(Shared& s, const Row& row, uint32_t num_runs, uint32_t bound) {
  constexpr int kEach = 2;
  uint32_t gathered = 0;
  for (uint32_t first = 0; first < num_runs; first += kThreads * kEach) {
    uint4 quads[kEach][2] = {};
    int64_t base[kEach] = {};
    uint32_t bits[kEach] = {};
    uint32_t mine = 0;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const uint32_t j = first + threadIdx.x * kEach + e;
      if (j >= num_runs) continue;
      base[e] = int64_t{s.runs[j]} * kMaximaRows;
      const auto* from = reinterpret_cast<const uint4*>(row.values + base[e]);
      quads[e][0] = from[0];
      quads[e][1] = from[1];
    }
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int64_t left = first + threadIdx.x * kEach + e < num_runs ? row.count - base[e] : 0;
      bits[e] = reaching(quads[e][0], bound, left) | reaching(quads[e][1], bound, left - 4) << 4;
      mine += __popc(bits[e]);
    }
    uint32_t sum;
    uint32_t to = gathered + exclusive_scan(s, mine, sum);
    gathered += sum;
    if (gathered > kListed) return gathered;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
#pragma unroll
      for (int v = 0; v < 8; ++v) {
        if (!(bits[e] >> v & 1)) continue;
        const uint4& quad = quads[e][v / 4];
        s.keys[to] = v % 4 == 0 ? quad.x : v % 4 == 1 ? quad.y : v % 4 == 2 ? quad.z : quad.w;
        s.positions[to++] = static_cast<int32_t>(base[e] + v);
      }
    }
  }
  __syncthreads();
  return gathered;
}

// kRun: how many values share a maximum; 1: values only.
template <int kRun, int kParts>
__device__ void select_row(Shared& s, const Row& row, const uint32_t* maxima, uint32_t k, const Output& out) {
  const Quads quads(kRun == 1 ? row.values : maxima, (row.count + kRun - 1) / kRun, row.newest_first);
  const uint32_t bound = k > kParts * kThreads ? 0 : bound_of_parts<kParts>(s, quads, k);
  uint32_t gathered;
  if constexpr (kRun == 1) {
    gathered = list_reaching(s, quads, bound, [&](uint32_t to, int32_t index, uint32_t value) {
      s.keys[to] = value;
      s.positions[to] = index;
    });
  } else {
    gathered = list_reaching(s, quads, bound, [&](uint32_t to, int32_t index, uint32_t) { s.runs[to] = index; });
    if (gathered <= kListed) gathered = gather_runs(s, row, gathered, bound);
  }
  if (gathered > kListed) return select_by_radix(s, row, k, out);
  const int n = static_cast<int>(gathered);
  if (n <= 2 * kThreads) return select_gathered<2>(s, n, k, out);
  select_gathered<kListed / kThreads>(s, n, k, out);
}

template <int kRun, int kParts>
__global__ void __launch_bounds__(kThreads, 2) top_k_kernel(const TopKParams p) {
  extern __shared__ __align__(16) std::byte memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const int64_t token = p.scores.first + blockIdx.x;
  int64_t count = p.of_blocks ? p.choice.visible(token) : p.choice.count(token);
  if (p.of_blocks) count = (count + p.block_size - 1) / p.block_size;
  const uint32_t k = static_cast<uint32_t>(min(p.k, count));
  if (threadIdx.x == 0) p.num_selected[token] = static_cast<int32_t>(k);
  const Output out{p, token};
  if (count <= p.k) {
    for (int64_t i = threadIdx.x; i < count; i += kThreads) out.write(static_cast<uint32_t>(i), i);
    return;
  }
  if (k == 0) return;
  const uint32_t* maxima = p.scores.maxima == nullptr ? nullptr : p.scores.maxima_of(token);
  const Row row{p.of_blocks ? maxima : p.scores.of(token), count, p.of_blocks};
  select_row<kRun, kParts>(s, row, maxima, k, out);
}

template <int kRun, int kParts>
void launch(cudaStream_t stream, const TopKParams& p) {
  static const bool ready = [] {
    DI_CUDA_CHECK(cudaFuncSetAttribute(top_k_kernel<kRun, kParts>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       sizeof(Shared)));
    return true;
  }();
  static_cast<void>(ready);
  top_k_kernel<kRun, kParts><<<static_cast<unsigned>(p.scores.rows), kThreads, sizeof(Shared), stream>>>(p);
  DI_CUDA_CHECK_LAUNCH();
}

}  // namespace

void launch_top_k(cudaStream_t stream, const TopKParams& p, int64_t max_count) {
  if (p.scores.rows == 0) return;
  // Values of a short row are read directly.
  const bool by_runs = p.has_maxima && !p.of_blocks && max_count > 16384;
  const bool few = 2 * p.k <= 2 * kThreads;
  if (by_runs) return few ? launch<kMaximaRows, 2>(stream, p) : launch<kMaximaRows, 8>(stream, p);
  return few ? launch<1, 2>(stream, p) : launch<1, 8>(stream, p);
}

}  // namespace deepinfer::cuda
