// Selection by a block of threads a row, and the choice between it and clusters.
#include "backends/cuda/top_k.cuh"

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/top_k_long.cuh"

namespace deepinfer::cuda {
namespace {

using namespace by_block;

constexpr int64_t kShortRow = 16384;

struct RowShared {
  Shared general;
  KeptShared kept;
};

__device__ __forceinline__ void clear(RowShared& s) {
  for (int i = threadIdx.x; i < 3 * kBins; i += kThreads) s.general.histogram[0][i] = 0;
  for (int i = threadIdx.x; i < 5 * kBins; i += kThreads) s.kept.histogram[0][i] = 0;
  s.kept.won[threadIdx.x] = 0;
  if (threadIdx.x == 0) s.kept.num_ranked = 0;
}

// kQuads: quads of values or maxima that a thread keeps, if a row has no more; 0: it may.
template <int kRun, int kParts, int kQuads>
__global__ void __launch_bounds__(kThreads, 2) top_k_kernel(const TopKParams p) {
  extern __shared__ __align__(16) std::byte memory[];
  auto& s = *reinterpret_cast<RowShared*>(memory);
  Block block{s.general};
  clear(s);
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t token = p.scores.first + blockIdx.x;
  const uint32_t* maxima = p.scores.maxima == nullptr ? nullptr : p.scores.maxima_of(token);
  const uint32_t* values = p.of_blocks ? maxima : p.scores.of(token);
  // Before it is known how many there are.
  Kept<kQuads> kept;
  if constexpr (kQuads > 0) {
    const bool reads_maxima = kRun > 1 || p.of_blocks;
    const auto stride = static_cast<int>(reads_maxima ? p.scores.maxima_stride : p.scores.stride);
    kept.load(kRun > 1 ? maxima : values, p.scores.values == nullptr ? 0 : stride);
  }
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
  const Row row{values, count, p.of_blocks};
  if constexpr (kQuads > 0) {
    kept.cut((count + kRun - 1) / kRun, p.of_blocks);
    __syncthreads();
    if (k <= kParts * kThreads && select_kept<kRun, kParts>(s.kept, block.warps, row, kept, k, out)) return;
    __syncthreads();
  }
  select_row<kRun, kParts>(block, row, maxima, static_cast<uint32_t>(k), out);
}

// Rows of at most kEach * kThreads * kMaximaRows scores without maxima.
template <int kEach>
__global__ void __launch_bounds__(kThreads, 2) top_k_long_kernel(const TopKParams p) {
  extern __shared__ __align__(16) std::byte memory[];
  auto& s = *reinterpret_cast<RowShared*>(memory);
  Block block{s.general};
  clear(s);
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t token = p.scores.first + blockIdx.x;
  const auto count = static_cast<int>(p.choice.count(token));
  const int k = static_cast<int>(min(p.k, int64_t{count}));
  if (threadIdx.x == 0) p.num_selected[token] = k;
  const Output out{p, token, p.selected + token * p.selected_stride};
  if (count <= p.k) {
    for (int i = threadIdx.x; i < count; i += kThreads) out.write(i, i);
    return;
  }
  if (k == 0) return;
  const Row row{p.scores.of(token), count, false};
  __syncthreads();
  if (select_long<kEach>(s.kept, block.warps, row, k, out)) return;
  __syncthreads();
  select_row<1, 2>(block, row, nullptr, static_cast<uint32_t>(k), out);
}

// A block a row.
template <auto kKernel>
void launch_rows(Stream& stream, const TopKParams& p) {
  static const bool ready = [] {
    DI_CUDA_CHECK(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(RowShared)));
    return true;
  }();
  static_cast<void>(ready);
  launch(stream, Start::kEarly, dim3(static_cast<unsigned>(p.scores.rows)), kThreads, sizeof(RowShared), kKernel, p);
}

template <int kRun, int kParts>
void launch_kernel(Stream& stream, const TopKParams& p, int64_t max_count) {
  const int64_t kept = (max_count + kRun - 1) / kRun;
  if (kept <= 4 * 4 * kThreads) return launch_rows<top_k_kernel<kRun, kParts, 4>>(stream, p);
  if (kept <= 8 * 4 * kThreads) return launch_rows<top_k_kernel<kRun, kParts, 8>>(stream, p);
  launch_rows<top_k_kernel<kRun, kParts, 0>>(stream, p);
}

// By a block a row. Values of a short row are read directly.
void launch_blocks(Stream& stream, const TopKParams& p, int64_t max_count) {
  const bool by_runs = p.has_maxima && !p.of_blocks && max_count > kShortRow;
  const bool few = p.k <= kThreads;
  if (by_runs && few) return launch_kernel<kMaximaRows, 2>(stream, p, max_count);
  if (by_runs) return launch_rows<top_k_kernel<kMaximaRows, 8, 0>>(stream, p);
  return few ? launch_kernel<1, 2>(stream, p, max_count) : launch_rows<top_k_kernel<1, 8, 0>>(stream, p);
}

}  // namespace

void launch_top_k(Stream& stream, const TopKJobs& jobs, int64_t max_count) {
  const TopKParams& rows = jobs.job[0];
  if (rows.scores.rows == 0) return;
  // Few rows are worth several blocks each, unless maxima save reading most of their values and nothing else is wanted.
  const bool are_few = rows.scores.rows * jobs.num * kTopKCluster <= 2 * cuda_stream(stream).num_sms();
  const bool is_long = max_count > kShortRow;
  constexpr int64_t kMade = int64_t{kThreads} * kMaximaRows;  // scores whose maxima are one a thread
  constexpr int64_t kFromRows = 17;                           // fewer go to clusters
  if (jobs.num == 1 && !rows.has_maxima && is_long && rows.k <= kThreads && max_count <= 32 * kMade &&
      rows.scores.rows >= kFromRows) {
    return max_count <= 16 * kMade ? launch_rows<top_k_long_kernel<16>>(stream, rows)
                                   : launch_rows<top_k_long_kernel<32>>(stream, rows);
  }
  if (jobs.num > 1 || !rows.has_maxima || !is_long) {
    const bool by_clusters = are_few ? max_count > kShortRow / 2 : is_long && !rows.has_maxima;
    if (by_clusters) return launch_top_k_clusters(stream, jobs, max_count);
  }
  launch_blocks(stream, rows, max_count);
  if (jobs.num > 1) {
    const int64_t size = jobs.job[1].block_size;
    launch_blocks(stream, jobs.job[1], (max_count + size - 1) / size);
  }
}

}  // namespace deepinfer::cuda
