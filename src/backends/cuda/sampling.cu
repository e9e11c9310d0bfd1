// sample: a row of logits is read once, by a cluster of eight blocks that keep it in shared memory, and every later
// pass stays on the chip. Floor: 4 bytes a logit (256 rows of 129280: 132 MB, 31 us at 4.3 TB/s).
//
// Three ways, chosen by the row alone. Greedy: the first pass knows the answer. A small top-k: the threads' maxima give
// a bound that at least k ids reach, and the first block sorts the ids that do, at most 1024. Anything else:
// sampling_select.cuh and a race over all that is left.
#include "backends/cuda/cuda_check.h"
#include "backends/cuda/cuda_stream.h"
#include "backends/cuda/kernels.h"
#include "backends/cuda/sampling_race.cuh"
#include "backends/cuda/sampling_row.cuh"
#include "backends/cuda/sampling_select.cuh"
#include "base/check.h"

namespace deepinfer::cuda {
namespace sampling {
namespace {

constexpr double kGreedyBelow = 1e-5;
constexpr int kLargestListedTopK = 128;  // half of a block's threads: beyond, their maxima bound little
constexpr float kMinusInfinity = -__builtin_huge_valf();

// The best id of a thread: the lowest among equals, if it is asked in ascending order.
struct ThreadBest {
  float value = kMinusInfinity;
  uint32_t id = kNoId;
  bool is_bad = false;
  // Gives what the logit counts as.
  __device__ float see(float x, uint32_t this_id, bool is_allowed) {
    is_bad |= !(x <= 3.402823466e38f);
    if (!is_allowed) return kMinusInfinity;
    x += 0.0f;  // -0 becomes +0
    if (x > value || id == kNoId) value = x, id = this_id;
    return x;
  }
  __device__ uint32_t key() const { return id == kNoId ? 0 : key_of(value); }
};

// Copies the block's part of the row to shared memory. A thread owns groups of four neighbours, every kThreads-th one.
template <bool kAligned>
__device__ ThreadBest load_row(const Row& row, const float* logits, const uint32_t* allowed) {
  ThreadBest best;
  Shared& s = *row.shared;
  const auto load = [&](uint32_t i) -> float4 {
    if constexpr (kAligned) {
      return i < row.count ? __ldcs(reinterpret_cast<const float4*>(logits + i)) : float4{};
    } else {
      const auto at = [&](uint32_t k) { return k < row.count ? logits[k] : 0.0f; };
      return {at(i), at(i + 1), at(i + 2), at(i + 3)};
    }
  };
  const auto keep = [&](uint32_t i, const float4& x) {
    if (i >= row.count) return;
    // Four neighbours are in one word: first_id is a multiple of 32.
    uint32_t bits = allowed != nullptr ? allowed[i / 32] >> (i % 32) : 15;
    if (!kAligned && row.count - i < 4) bits &= (1u << (row.count - i)) - 1;
    const uint32_t id = row.first_id + i;
    float4 kept;
    kept.x = best.see(x.x, id, (bits & 1) != 0);
    kept.y = best.see(x.y, id + 1, (bits & 2) != 0);
    kept.z = best.see(x.z, id + 2, (bits & 4) != 0);
    kept.w = best.see(x.w, id + 3, (bits & 8) != 0);
    *reinterpret_cast<float4*>(s.values + i) = kept;
  };
  constexpr int kBatch = 8;
  constexpr uint32_t kStep = kThreads * 4;
  for (uint32_t i = threadIdx.x * 4; i < row.count; i += kBatch * kStep) {
    float4 x[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) x[b] = load(i + b * kStep);
#pragma unroll
    for (int b = 0; b < kBatch; ++b) keep(i + b * kStep, x[b]);
  }
  return best;
}

// Keys that `k` and that `share` of the block's threads reach with their best logit, as large as steps of 2^10 allow:
// so many ids of the block at least are no smaller. Two bits of both a step.
__device__ void find_reached(Shared& s, uint32_t thread_key, uint32_t k, uint32_t share, uint32_t& by_k,
                             uint32_t& by_share) {
  by_k = by_share = 0;
  int turn = 0;
  for (int bit = 30; bit >= 10; bit -= 2, turn ^= 1) {
    uint64_t packed = 0;  // six counts of at most 256
#pragma unroll
    for (uint32_t step = 1; step <= 3; ++step) {
      const uint64_t one = __popc(__ballot_sync(0xffffffffu, thread_key >= by_k + (step << bit)));
      const uint64_t other = __popc(__ballot_sync(0xffffffffu, thread_key >= by_share + (step << bit)));
      packed |= one << (10 * (step - 1)) | other << (10 * (step + 2));
    }
    if (threadIdx.x % 32 == 0) s.counts[turn][threadIdx.x / 32] = packed;
    __syncthreads();
    uint64_t sum = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += s.counts[turn][warp];
    uint32_t step = 0, other_step = 0;  // counts fall with the step
#pragma unroll
    for (int t = 0; t < 3; ++t) {
      step += (static_cast<uint32_t>(sum >> (10 * t)) & 1023) >= k ? 1 : 0;
      other_step += (static_cast<uint32_t>(sum >> (10 * t + 30)) & 1023) >= share ? 1 : 0;
    }
    by_k += step << bit, by_share += other_step << bit;
  }
}

// Every block learns what every block found.
__device__ void exchange_summaries(const Row& row, const ThreadBest& best, bool is_bad, uint32_t reached_by_k,
                                   uint32_t reached_by_share) {
  Shared& s = *row.shared;
  uint32_t key = best.key();
  uint32_t largest = __reduce_max_sync(0xffffffffu, key);
  uint32_t id = __reduce_min_sync(0xffffffffu, key == largest ? best.id : kNoId);
  if (threadIdx.x % 32 == 0) s.warp_keys[threadIdx.x / 32] = largest, s.warp_ids[threadIdx.x / 32] = id;
  __syncthreads();
  if (threadIdx.x < 32) {
    key = threadIdx.x < kWarps ? s.warp_keys[threadIdx.x] : 0;
    id = threadIdx.x < kWarps ? s.warp_ids[threadIdx.x] : kNoId;
    largest = __reduce_max_sync(0xffffffffu, key);
    id = __reduce_min_sync(0xffffffffu, key == largest ? id : kNoId);
  }
  cg::this_cluster().barrier_wait();  // all blocks have begun: their shared memory is there
  const Summary summary{largest, id, is_bad ? 1u : 0u, 0, reached_by_k, reached_by_share};
  tell_all(row, [&](Shared& other) { other.summaries[row.rank] = summary; });
  cg::this_cluster().sync();
}

// The row's, of all blocks' summaries. reached_by_k: by so many ids of the row at least.
__device__ Summary merge(const Shared& s) {
  Summary all{0, kNoId, 0, 0, 0, 0xffffffffu};
  for (int block = 0; block < kCluster; ++block) {
    const Summary& one = s.summaries[block];
    if (one.best_key > all.best_key) all.best_key = one.best_key, all.best_id = one.best_id;
    all.is_bad |= one.is_bad;
    all.reached_by_k = max(all.reached_by_k, one.reached_by_k);
    all.reached_by_share = min(all.reached_by_share, one.reached_by_share);
  }
  all.reached_by_k = max(all.reached_by_k, all.reached_by_share);
  return all;
}

// Where a row's token goes.
struct Sink {
  int32_t* token;
  int32_t* last;  // null: nowhere else
  __device__ void put(int32_t id) const {
    *token = id;
    if (last != nullptr) *last = max(id, 0);
  }
};

// In the first block, the sorted list of a row whose best k are all in it: filters and race. The token in thread 0.
__device__ uint32_t choose_from_list(const Row& row, const uint64_t* list, uint32_t size, uint32_t low_key) {
  Shared& s = *row.shared;
  constexpr uint32_t kEach = kListSize / kThreads;
  const auto key_at = [&](uint32_t i) { return static_cast<uint32_t>(list[i] >> 32); };
  const float best = value_of(key_at(0));
  uint32_t kept = 0;
  for (uint32_t e = 0; e < kEach; ++e) {
    const uint32_t i = e * kThreads + threadIdx.x;
    kept += __syncthreads_count(i < size && key_at(i) >= low_key);
  }
  kept = min(kept, static_cast<uint32_t>(row.top_k));
  if (row.top_p < 1) {
    // Few are kept: a thread each works their weights out. The block's logits are no longer needed.
    auto* weight_of_entry = reinterpret_cast<uint64_t*>(s.values);
    for (uint32_t i = threadIdx.x; i < kListSize; i += kThreads) {
      weight_of_entry[i] = i < kept ? weight_of(row, value_of(key_at(i)), best) : 0;
    }
    __syncthreads();
    const uint32_t first = kEach * threadIdx.x;
    uint64_t weights[kEach], mine = 0, total;
    for (uint32_t e = 0; e < kEach; ++e) weights[e] = weight_of_entry[first + e], mine += weights[e];
    uint64_t before = exclusive_scan(s, mine, total);
    const uint64_t target = top_p_target(total, row.top_p);
    for (uint32_t e = 0; e < kEach; ++e) {
      if (before < target && target <= before + weights[e]) s.num_listed = first + e + 1;
      before += weights[e];
    }
    __syncthreads();
    kept = s.num_listed;
  }
  double score = -__builtin_huge_val();
  uint32_t id = kNoId;
  for (uint32_t i = threadIdx.x; i < kept; i += kThreads) {
    const uint32_t this_id = ~static_cast<uint32_t>(list[i]);
    const double this_score = score_of(row, value_of(key_at(i)), random_word(row, this_id));
    if (this_score > score || (this_score == score && this_id < id)) score = this_score, id = this_id;
  }
  reduce_scores(s, score, id);
  return id;
}

// Lists every id of the row that reaches `least` in the first block's memory and chooses there. False, and nothing
// done, if they are too many.
__device__ bool finish_from_list(const Row& row, uint32_t least, uint32_t low_key, const Sink& sink) {
  const cg::cluster_group cluster = cg::this_cluster();
  Shared& s = *row.shared;
  Shared& first = *cluster.map_shared_rank(row.shared, 0);
  list_where(row, first, [&](float x, uint32_t) { return key_of(x) >= least; });
  cluster.sync();
  const uint32_t total = first.num_listed;
  if (total > kListSize) {
    cluster.sync();  // all have read it
    return false;
  }
  cluster.barrier_arrive();
  if (row.rank != 0) return true;
  sort_descending(s.list, total);
  const uint32_t id = choose_from_list(row, s.list, total, low_key);
  if (threadIdx.x == 0) sink.put(static_cast<int32_t>(id));
  cluster.barrier_wait();  // nobody reads this block's memory any more
  return true;
}

__device__ void finish_by_selection(const Row& row, Filter filter, float best, uint32_t best_id, const Sink& sink) {
  Shared& s = *row.shared;
  if (row.top_k > 0) {
    filter = narrow<false>(row, filter, best, [&](uint64_t) { return static_cast<uint64_t>(row.top_k); });
  }
  if (row.top_p < 1) {
    filter = narrow<true>(row, filter, best, [&](uint64_t total) { return top_p_target(total, row.top_p); });
  }
  double score;
  uint32_t id;
  race(row, filter, best, best_id, score, id);
  if (threadIdx.x == 0) {
    Shared& first = *cg::this_cluster().map_shared_rank(row.shared, 0);
    first.scores[row.rank] = score, first.score_ids[row.rank] = id;
  }
  cg::this_cluster().sync();
  if (row.rank != 0 || threadIdx.x != 0) return;
  for (int block = 1; block < kCluster; ++block) {
    const double other = s.scores[block];
    if (other > score || (other == score && s.score_ids[block] < id)) score = other, id = s.score_ids[block];
  }
  sink.put(static_cast<int32_t>(id));
}

// Grid: (kCluster, rows). One row a cluster.
template <bool kAligned>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 3)
    sample_kernel(const ops::SampleArgs args, uint32_t chunk) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const int64_t r = blockIdx.y;
  const ops::SampleRow& p = args.rows[r];
  const auto size = static_cast<uint32_t>(args.logits.cols);
  const uint32_t rank = blockIdx.x;
  const uint32_t first_id = min(rank * chunk, size);
  const Row row{
      &s,    rank,       first_id, min(chunk, size - first_id), p.temperature, 1 / p.temperature, p.top_p, p.min_p,
      p.key, p.position, p.top_k};
  if (row.position < 0) return;
  const Sink sink{args.tokens + r, args.last_tokens != nullptr && p.slot >= 0 ? args.last_tokens + p.slot : nullptr};
  cg::this_cluster().barrier_arrive();

  const uint32_t* allowed = nullptr;
  if (args.allowed.data != nullptr && p.mask_row >= 0) {
    allowed = args.allowed.data + p.mask_row * args.allowed.stride + first_id / 32;
  }
  const ThreadBest thread_best = load_row<kAligned>(row, args.logits.data + r * args.logits.stride + first_id, allowed);
  const bool is_bad = __syncthreads_or(thread_best.is_bad ? 1 : 0) != 0;
  const bool is_greedy = row.temperature < kGreedyBelow;
  const bool lists = !is_greedy && row.top_k > 0 && row.top_k <= kLargestListedTopK;
  uint32_t reached_by_k = 0, reached_by_share = 0;
  if (lists) {
    if (threadIdx.x == 0) s.num_listed = 0;
    find_reached(s, thread_best.key(), row.top_k, (row.top_k + kCluster - 1) / kCluster, reached_by_k,
                 reached_by_share);
  }
  exchange_summaries(row, thread_best, is_bad, reached_by_k, reached_by_share);

  const Summary all = merge(s);
  if (all.is_bad != 0 || is_greedy || all.best_key <= kKeyOfMinusInfinity) {
    const int32_t best_id = all.best_id == kNoId ? 0 : static_cast<int32_t>(all.best_id);
    if (rank == 0 && threadIdx.x == 0) sink.put(all.is_bad != 0 ? -1 : best_id);
    return;
  }
  const float best = value_of(all.best_key);
  Filter filter{kKeyOfMinusInfinity + 1, kNoId};
  if (row.min_p > 0) {
    const float floor = __double2float_ru(best + log(row.min_p) * row.temperature) + 0.0f;
    filter.low_key = max(filter.low_key, key_of(floor));
  }
  const uint32_t least = max(all.reached_by_k, kKeyOfMinusInfinity + 1);
  if (lists && finish_from_list(row, least, filter.low_key, sink)) return;
  finish_by_selection(row, filter, best, all.best_id, sink);
}

}  // namespace
}  // namespace sampling

void sample(Stream& stream, const ops::SampleArgs& args) {
  using namespace sampling;
  if (args.logits.rows == 0) return;
  const int64_t vocabulary = args.logits.cols;
  const int64_t chunk = ((vocabulary + kCluster - 1) / kCluster + 31) / 32 * 32;
  const int64_t bytes =
      static_cast<int64_t>(offsetof(Shared, values)) + std::max<int64_t>(chunk * 4, kListSize * sizeof(uint64_t));
  constexpr int64_t kMostBytes = 227 * 1024;  // of shared memory a block may have
  DI_CHECK(vocabulary <= kMostIds && bytes <= kMostBytes, "a vocabulary of {}: a row does not fit on the chip",
           vocabulary);
  const bool is_aligned =
      vocabulary % 4 == 0 && args.logits.stride % 4 == 0 && reinterpret_cast<uintptr_t>(args.logits.data) % 16 == 0;
  const auto kernel = is_aligned ? sample_kernel<true> : sample_kernel<false>;
  DI_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostBytes));
  const dim3 grid(kCluster, static_cast<unsigned>(args.logits.rows));
  kernel<<<grid, kThreads, bytes, cuda_stream(stream).handle()>>>(args, static_cast<uint32_t>(chunk));
  DI_CUDA_CHECK_LAUNCH();
}

}  // namespace deepinfer::cuda
