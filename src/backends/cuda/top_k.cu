// Selection by a block of threads a row, and the choice between it and clusters.
#include "backends/cuda/top_k.cuh"

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/top_k_row.cuh"

namespace deepinfer::cuda {
namespace {

using namespace by_block;

constexpr int64_t kShortRow = 16384;

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

// By a block a row. Values of a short row are read directly.
void launch_blocks(Stream& stream, const TopKParams& p, int64_t max_count) {
  const bool by_runs = p.has_maxima && !p.of_blocks && max_count > kShortRow;
  const bool few = p.k <= kThreads;
  if (by_runs) return few ? launch_kernel<kMaximaRows, 2>(stream, p) : launch_kernel<kMaximaRows, 8>(stream, p);
  return few ? launch_kernel<1, 2>(stream, p) : launch_kernel<1, 8>(stream, p);
}

}  // namespace

void launch_top_k(Stream& stream, const TopKJobs& jobs, int64_t max_count) {
  const TopKParams& rows = jobs.job[0];
  if (rows.scores.rows == 0) return;
  // Few rows are worth several blocks each, unless maxima save reading most of their values and nothing else is wanted.
  const bool are_few = rows.scores.rows * jobs.num * kTopKCluster <= 2 * cuda_stream(stream).num_sms();
  const bool is_long = max_count > kShortRow;
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
