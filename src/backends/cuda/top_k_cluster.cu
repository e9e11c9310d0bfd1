// Selection from a row by a cluster of blocks, or by one.
#include "backends/cuda/top_k.cuh"

#include <algorithm>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/top_k_select.cuh"

namespace deepinfer::cuda {
namespace {

constexpr size_t kMostShared = 200 << 10;

struct Shape {
  int cluster;
  int words;  // of bits, for a block's part
};

__global__ void __launch_bounds__(kTopKThreads, 2)
    top_k_cluster_kernel(const __grid_constant__ TopKJobs jobs, const Shape shape) {
  extern __shared__ __align__(16) std::byte memory[];
  let_next_kernel_start();
  TopKShared& s = *reinterpret_cast<TopKShared*>(memory);
  auto* turned = reinterpret_cast<uint32_t*>(memory + sizeof(TopKShared));
  uint32_t* won = turned + kTopKTurned;
  for (int i = threadIdx.x; i < shape.words; i += kTopKThreads) won[i] = 0;
  for (int i = threadIdx.x; i < 3 * kTopKBins; i += kTopKThreads) s.histogram[0][i] = 0;
  if (threadIdx.x == 0) s.num_ranked = s.num_won = 0;
  TopKTeam team(s, shape.cluster, static_cast<int>(blockIdx.x % shape.cluster));
  wait_for_kernel_before();

  const TopKParams& p = jobs.job[blockIdx.y];
  const int64_t token = p.scores.first + blockIdx.x / shape.cluster;
  int count = static_cast<int>(p.of_blocks ? p.choice.visible(token) : p.choice.count(token));
  if (p.of_blocks) count = (count + p.block_size - 1) / p.block_size;
  const auto k = static_cast<uint32_t>(min(p.k, int64_t{count}));
  int32_t* selected = p.selected + token * p.selected_stride;
  const auto position = [&](int i) { return p.of_blocks ? i : static_cast<int32_t>(p.choice.row(token, i)); };
  if (team.block == 0 && threadIdx.x == 0) p.num_selected[token] = static_cast<int32_t>(k);
  if (static_cast<int>(k) == count) {
    for (int i = team.block * kTopKThreads + threadIdx.x; i < count; i += team.num_blocks * kTopKThreads) {
      selected[i] = position(i);
    }
    return;
  }
  if (k == 0) return;
  const uint32_t* row = p.of_blocks ? p.scores.maxima_of(token) : p.scores.of(token);

  // Equal parts; whole words of bits, so that places in the row and in the bits agree.
  const int each = (count + 32 * team.num_blocks - 1) / (32 * team.num_blocks) * 32;
  const int begin = min(count, team.block * each);
  TopKValues values(row + begin, min(each, count - begin), p.of_blocks && begin + each >= count, turned);
  uint32_t best[4] = {};
  for (int chunk = 0; chunk < values.num_chunks(); ++chunk) values.bring(chunk, values.num_chunks() == 1, best);
  const TopKRange range = find_range(team, best, k);
  if (values.num_chunks() == 1) values.take(0);
  select(team, values, range, k, won, begin, [&](uint32_t to, int i) { selected[to] = position(begin + i); });
}

}  // namespace

void launch_top_k_clusters(Stream& base, const TopKJobs& jobs, int64_t max_count) {
  CudaStream& stream = cuda_stream(base);
  const int64_t rows = jobs.job[0].scores.rows;
  // How a row is shared out changes no result. Few rows: the more blocks the faster; many: what registers hold.
  const int64_t most = rows * jobs.num * kTopKCluster > 2 * stream.num_sms() ? kTopKChunk : kTopKChunk / 2;
  Shape shape = {1, 0};
  while (shape.cluster < kTopKCluster && max_count > shape.cluster * most) shape.cluster *= 2;
  shape.words = static_cast<int>((max_count + 32 * shape.cluster - 1) / (32 * shape.cluster));
  const size_t bytes = sizeof(TopKShared) + sizeof(uint32_t) * (kTopKTurned + shape.words);
  DI_CHECK(bytes <= kMostShared, "rows of {} scores do not fit", max_count);
  static const bool ready = [] {
    DI_CUDA_CHECK(cudaFuncSetAttribute(top_k_cluster_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared));
    return true;
  }();
  static_cast<void>(ready);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(rows * shape.cluster), static_cast<unsigned>(jobs.num));
  config.blockDim = dim3(kTopKThreads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream.handle();
  config.attrs = attributes;
  config.numAttrs = shape.cluster > 1 ? 2 : 1;
  DI_CUDA_CHECK(cudaLaunchKernelEx(&config, top_k_cluster_kernel, jobs, shape));
}

}  // namespace deepinfer::cuda
