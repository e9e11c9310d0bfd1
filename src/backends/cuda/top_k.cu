#include "backends/cuda/top_k.cuh"

#include <algorithm>

#include "backends/cuda/cuda_check.h"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kListed = 4096;  // gathered runs, and gathered values, of a row
constexpr int kMaxParts = 4;   // parts of a row, in multiples of kThreads

struct Shared {
  uint32_t keys[kListed];
  int32_t positions[kListed];
  int32_t runs[kListed];
  uint32_t histogram[256];
  uint32_t warp_sums[kWarps];
  uint32_t warp_counts[2][kWarps];
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
  uint32_t warps = s.warp_sums[lane];
  for (int d = 1; d < 32; d *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, warps, d);
    if (lane >= d) warps += other;
  }
  total = __shfl_sync(~0u, warps, 31);
  const uint32_t before = __shfl_sync(~0u, warps, warp == 0 ? 0 : warp - 1);
  return sum - value + (warp == 0 ? 0 : before);
}

// Counts over the threads; `turn` alternates between calls.
__device__ uint32_t count_all(Shared& s, uint32_t count, int turn) {
  const uint32_t sum = __reduce_add_sync(~0u, count);
  if (threadIdx.x % 32 == 0) s.warp_counts[turn][threadIdx.x / 32] = sum;
  __syncthreads();
  return __reduce_add_sync(~0u, s.warp_counts[turn][threadIdx.x % 32]);
}

// The largest t that at least `k` of the threads' `keys` reach, or a smaller one that at most `enough` do. Requires:
// at least k keys.
template <int kKeys>
__device__ uint32_t find_bound(Shared& s, const uint32_t (&keys)[kKeys], uint32_t k, uint32_t enough) {
  uint32_t bound = 0;
  for (int bit = 31; bit >= 0; --bit) {
    const uint32_t t = bound | 1u << bit;
    uint32_t count;
    if constexpr (kKeys == 1) {
      count = __syncthreads_count(keys[0] >= t);
    } else {
      count = 0;
#pragma unroll
      for (int i = 0; i < kKeys; ++i) count += keys[i] >= t;
      count = count_all(s, count, bit & 1);
    }
    if (count >= k) {
      bound = t;
      if (count <= enough) break;
    }
  }
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
  const uint32_t threshold = find_bound<kKeys>(s, keys, k, k);
  uint32_t greater = 0;
#pragma unroll
  for (int i = 0; i < kKeys; ++i) greater += keys[i] > threshold;
  __syncthreads();
  greater = count_all(s, greater, 0);
  place(
      s, n, threshold, k - greater, [&](int64_t i) { return s.keys[i]; }, [&](int64_t i) { return s.positions[i]; },
      out);
}

// A bound that at least k of the maxima reach: the k-th largest of the maxima over kParts * kThreads parts, each of
// neighbouring runs. `each`: runs in a part.
template <int kParts, typename Max>
__device__ uint32_t bound_of_parts(Shared& s, int64_t runs, int64_t each, uint32_t k, const Max& max_of) {
  uint32_t best[kParts];
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    best[part] = 0;
    const int64_t begin = (int64_t{threadIdx.x} * kParts + part) * each;
    const int64_t end = min(runs, begin + each);
    for (int64_t r = begin; r < end; ++r) best[part] = max(best[part], max_of(r));
  }
  return find_bound<kParts>(s, best, k, k + k / 16);
}

// kRun values have one of the maxima.
template <int kRun, int kParts>
__device__ void select_row(Shared& s, const Row& row, const uint32_t* maxima, uint32_t k, const Output& out) {
  const int64_t runs = (row.count + kRun - 1) / kRun;
  const auto max_of = [&](int64_t r) { return kRun == 1 ? row(r) : maxima[r]; };
  const int64_t each = (runs + kParts * kThreads - 1) / (kParts * kThreads);
  if (k > kParts * kThreads) return select_by_radix(s, row, k, out);
  const uint32_t bound = bound_of_parts<kParts>(s, runs, each, k, max_of);

  // The runs that reach the bound, in order.
  const int64_t begin = int64_t{threadIdx.x} * kParts * each;
  const int64_t end = min(runs, begin + kParts * each);
  uint32_t reached = 0;
  for (int64_t r = begin; r < end; ++r) reached += max_of(r) >= bound;
  uint32_t total;
  uint32_t at = exclusive_scan(s, reached, total);
  if (total > kListed) return select_by_radix(s, row, k, out);
  for (int64_t r = begin; r < end; ++r) {
    const uint32_t best = max_of(r);
    if (best < bound) continue;
    if (kRun == 1) {
      s.keys[at] = best;
      s.positions[at] = static_cast<int32_t>(r);
    } else {
      s.runs[at] = static_cast<int32_t>(r);
    }
    ++at;
  }
  __syncthreads();

  uint32_t gathered = total;
  if constexpr (kRun > 1) {
    gathered = 0;
    for (uint32_t first = 0; first < total; first += kThreads) {
      const uint32_t j = first + threadIdx.x;
      uint32_t keys[kRun];
      int64_t base = 0;
      uint32_t mine = 0;
      if (j < total) {
        base = int64_t{s.runs[j]} * kRun;
        const auto* from = reinterpret_cast<const uint4*>(row.values + base);
#pragma unroll
        for (int v = 0; v < kRun / 4; ++v) {
          const uint4 four = from[v];
          keys[4 * v] = four.x, keys[4 * v + 1] = four.y, keys[4 * v + 2] = four.z, keys[4 * v + 3] = four.w;
        }
#pragma unroll
        for (int v = 0; v < kRun; ++v) mine += base + v < row.count && keys[v] >= bound;
      }
      uint32_t sum;
      uint32_t to = gathered + exclusive_scan(s, mine, sum);
      if (gathered + sum > kListed) return select_by_radix(s, row, k, out);
      if (j < total) {
#pragma unroll
        for (int v = 0; v < kRun; ++v) {
          if (base + v >= row.count || keys[v] < bound) continue;
          s.keys[to] = keys[v];
          s.positions[to] = static_cast<int32_t>(base + v);
          ++to;
        }
      }
      gathered += sum;
    }
    __syncthreads();
  }
  if (gathered <= kThreads) {
    select_gathered<1>(s, static_cast<int>(gathered), k, out);
  } else {
    select_gathered<kListed / kThreads>(s, static_cast<int>(gathered), k, out);
  }
}

template <int kRun, int kParts>
__global__ void __launch_bounds__(kThreads) top_k_kernel(const TopKParams p) {
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
  const bool by_runs = p.has_maxima && !p.of_blocks && max_count > 16 * kThreads;
  const bool few = 2 * p.k <= kThreads;
  if (by_runs) return few ? launch<kMaximaRows, 1>(stream, p) : launch<kMaximaRows, kMaxParts>(stream, p);
  return few ? launch<1, 1>(stream, p) : launch<1, kMaxParts>(stream, p);
}

}  // namespace deepinfer::cuda
