// Who scores what in decode: keys in units, shared out evenly over all blocks whatever the lengths of the contexts, so
// that blocks end together and none starts twice. How they are shared out changes no score.
//
// Neighbouring tokens with one block table are a run, which shares its keys; runs do not cross multiples of four, so
// that every block sees the same ones. Units of all runs are numbered one after the other.
#pragma once

#include "backends/cuda/indexer_keys.cuh"
#include "backends/cuda/indexer_rows.cuh"
#include "backends/cuda/warp_scan.cuh"

namespace deepinfer::cuda {

inline constexpr int kRunTokens = 4;      // at most
inline constexpr int kShareTokens = 512;  // of a launch at most

struct IndexRun {
  std::byte* const* table;
  int32_t first_token, num_tokens;  // from the first of the launch on
  int32_t count;                    // the most scores of any of its tokens
  int32_t first_unit;               // of those that the block takes
};

struct IndexShare {
  IndexRun runs[kShareTokens];           // of which the block takes units
  int32_t first_step[kShareTokens + 1];  // of each run; a step is a unit
  int32_t counts[kShareTokens];          // scores of each token
  int2 of_warp[32];
};

// The block's share: how many runs. By all kThreads threads, at least as many as there are tokens; `shares`: whether
// neighbours may share keys.
template <int kUnitKeys, int kThreads>
__device__ __forceinline__ int find_share(const IndexScoreParams& p, IndexShare& s, bool shares) {
  const int token = threadIdx.x, lane = token % 32, warp = token / 32;
  const bool exists = token < p.scores.rows;
  const int64_t at = p.scores.first + token;
  std::byte* const* table = exists ? p.choice.blocks[at] : nullptr;
  const int count = exists ? static_cast<int>(p.count(at)) : 0;
  if (exists) s.counts[token] = count;
  const auto bits = reinterpret_cast<uint64_t>(table);
  const uint64_t bits_before = __shfl_up_sync(~0u, bits, 1);
  const int count_before = __shfl_up_sync(~0u, count, 1);
  const bool follows = shares && token % kRunTokens > 0 && count > 0 && count_before > 0 && bits == bits_before;
  const uint32_t followers = __ballot_sync(~0u, follows) >> lane >> 1;
  const int num_tokens = __ffs(static_cast<int>(~followers));
  int longest = count;
#pragma unroll
  for (int d = 1; d < kRunTokens; ++d) {
    const int other = __shfl_down_sync(~0u, count, d);
    if (d < num_tokens) longest = max(longest, other);
  }
  const int units = follows ? 0 : (longest + kUnitKeys - 1) / kUnitKeys;

  const int sum = inclusive_scan_of_warp(units, lane);
  const uint32_t runs = __ballot_sync(~0u, units > 0);
  if (lane == 31) s.of_warp[warp] = {sum, __popc(runs)};
  __syncthreads();
  const int2 other = lane < kThreads / 32 ? s.of_warp[lane] : int2{};
  const int total = __reduce_add_sync(~0u, other.x);
  const int before = sum - units + __reduce_add_sync(~0u, lane < warp ? other.x : 0);
  const int run = __popc(runs & ((1u << lane) - 1)) + __reduce_add_sync(~0u, lane < warp ? other.y : 0);
  const int share = (total + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
  const int first = static_cast<int>(blockIdx.x) * share, last = min(total, first + share);
  const int skipped = __syncthreads_count(units > 0 && before + units <= first);
  const bool is_mine = units > 0 && before < last && before + units > first;
  if (is_mine) {
    const int i = run - skipped;
    s.runs[i] = {table, token, num_tokens, longest, max(0, first - before)};
    s.first_step[i] = max(0, before - first);
    s.first_step[i + 1] = min(last, before + units) - first;
  }
  return __syncthreads_count(is_mine);
}

}  // namespace deepinfer::cuda
