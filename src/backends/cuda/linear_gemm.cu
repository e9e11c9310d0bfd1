// Products of packed weights with BF16 tokens on the tensor cores: one persistent launch for all matrices of a call.
//
// Floor: max(bytes of the packed weights / memory bandwidth, 2 rows cols tokens / BF16 rate).
//
// The sum over a matrix's columns is cut into gemm_parts parts; each is summed from zero in ascending order, and the
// parts are added in the order of their index. Where there is little to do, the parts of a block of outputs are items
// of different blocks, which exchange their sums (gemm_exchange.cuh, gemm_many_tokens.cuh). Where there is much, one
// block runs the parts one after the other. Both give the same bits.
#include "backends/cuda/linear_gemm.cuh"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <numeric>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/gemm_mainloop.cuh"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/tensor_map.h"

namespace deepinfer::cuda {
namespace {

// Counters that are zero between launches, one set for each stream.
constexpr int kCounterSets = 64, kCountersPerSet = 8192;
__device__ unsigned part_counters[kCounterSets][kCountersPerSet];

unsigned* counters_of(cudaStream_t stream, int count) {
  DI_CHECK(count <= kCountersPerSet, "{} blocks of split sums", count);
  static std::mutex mutex;
  static std::array<cudaStream_t, kCounterSets> owners;
  static int num_owners = 0;
  static unsigned* base = nullptr;
  std::lock_guard lock(mutex);
  if (base == nullptr) DI_CUDA_CHECK(cudaGetSymbolAddress(reinterpret_cast<void**>(&base), part_counters));
  int set = 0;
  while (set < num_owners && owners[set] != stream) ++set;
  DI_CHECK(set < kCounterSets, "products on more than {} streams", kCounterSets);
  if (set == num_owners) owners[num_owners++] = stream;
  return base + set * kCountersPerSet;
}

struct Plan {
  GemmParams params;
  int64_t num_partials = 0;  // items whose sums are left in memory
  int num_counters = 0;
};

Plan make_plan(const GemmVariant& variant, std::span<const ops::LinearTask> tasks) {
  Plan plan;
  plan.params.num_tasks = static_cast<int>(tasks.size());
  plan.params.num_items = 0;
  // Items that take longest start first.
  std::array<int, kMaxGemmTasks> order;
  std::iota(order.begin(), order.end(), 0);
  const auto cost = [&](int i) {
    const ops::PackedWeight& w = *tasks[i].weight;
    return column_tiles(w) * tile_bytes(w.format) / (variant.spread ? gemm_parts(w) : 1);
  };
  std::stable_sort(order.begin(), order.begin() + tasks.size(), [&](int a, int b) { return cost(a) > cost(b); });
  for (int i = 0; i < plan.params.num_tasks; ++i) {
    const ops::LinearTask& task = tasks[order[i]];
    const ops::PackedWeight& weight = *task.weight;
    const PackedInfo info = packed_info(weight);
    GemmTask& g = plan.params.tasks[i];
    g.tiles = weight.data.get();
    g.out = output_format(task, info.output_scale);
    g.num_k_tiles = static_cast<int>(column_tiles(weight));
    g.row_tiles = static_cast<int>(row_tiles(weight));
    g.cluster_rows = (g.row_tiles + variant.groups * variant.cluster - 1) / (variant.groups * variant.cluster);
    g.token_blocks = (g.out.num_tokens + variant.block_tokens - 1) / variant.block_tokens;
    g.num_parts = gemm_parts(weight);
    g.exponent = info.scale_bias + (weight.format == WeightFormat::kF8Tile32 ? kE4m3Exponent
                                    : weight.format == WeightFormat::kMxfp4  ? kE2m1Exponent
                                                                             : 0);
    plan.params.first_items[i] = plan.params.num_items;
    g.first_counter = plan.num_counters;
    g.first_partial = plan.num_partials;
    const int clusters = g.cluster_rows * g.token_blocks, blocks = clusters * variant.cluster;
    plan.params.num_items += variant.spread ? clusters * g.num_parts : clusters;
    if (variant.spread && g.num_parts > 1) {
      plan.num_counters += blocks;
      plan.num_partials += int64_t{blocks} * g.num_parts;
    }
    g.stores_boxes = g.out.is_bf16 && g.out.round && !g.out.quantise && g.out.vectors;
    if (g.stores_boxes && variant.block_tokens >= kBoxedTokens) {
      plan.params.outputs[i] = token_map(task.out.data, task.out.rows, task.out.cols, task.out.stride,
                                         box_tokens(variant.block_tokens, variant.spread));
    }
    // Few tokens, as many as there are, by eights: rows beyond the tensor cost more to fetch than others (17 tokens
    // took 17.7 us where 64 took 15.8, H200).
    const int fetched = variant.block_tokens <= kFewTokens
                            ? std::min(variant.block_tokens, (g.out.num_tokens + 7) / 8 * 8)
                            : variant.block_tokens;
    g.bytes_of_slab = fetched * kTileCols * 2;
    plan.params.tokens[i] =
        token_map(task.in.data, task.in.rows, task.in.cols, task.in.stride, fetched / variant.cluster);
  }
  return plan;
}

// How many clusters of `blocks` blocks of a kernel the card runs at a time. Blocks wait for each other, so no launch
// has more.
int resident_clusters(const GemmVariant& variant, int blocks, const cudaLaunchConfig_t& config) {
  static std::mutex mutex;
  static std::map<std::pair<void (*)(GemmParams), int>, int> known;
  std::lock_guard lock(mutex);
  int& clusters = known[{variant.kernel, blocks}];
  if (clusters == 0) {
    DI_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, variant.kernel, &config));
  }
  return clusters;
}

// The number of parts, if blocks that have them can exchange them in clusters, each with a multiprocessor for itself;
// otherwise 0.
int parts_in_cluster(const GemmVariant& variant, const GemmParams& params, int num_sms) {
  const int parts = params.tasks[0].num_parts;
  for (int i = 1; i < params.num_tasks; ++i) {
    if (params.tasks[i].num_parts != parts) return 0;
  }
  const bool can = variant.spread && variant.block_tokens <= kFewTokens && parts > 1 &&
                   parts >= variant.block_tokens / 8 && params.num_items <= num_sms;
  return can ? parts : 0;
}

void launch_variant(const GemmVariant& variant, CudaStream& stream, std::span<const ops::LinearTask> tasks) {
  Plan plan = make_plan(variant, tasks);
  GemmParams& params = plan.params;
  if (params.num_items == 0) return;
  params.ring_bytes = variant.stage_bytes;
  params.counters = counters_of(stream.handle(), plan.num_counters);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.blockDim = dim3(variant.threads);
  config.stream = stream.handle();
  config.attrs = attributes;
  // Returns how many clusters of so many blocks fit.
  const auto configure = [&](int blocks, int inbox_bytes) {
    const int fixed = variant.fixed_shared_bytes + inbox_bytes;
    params.inbox_bytes = inbox_bytes;
    params.num_stages = std::min((variant.shared_limit - fixed) / variant.stage_bytes, kMaxGemmStages);
    config.dynamicSmemBytes = params.num_stages * params.ring_bytes + fixed;
    DI_CUDA_CHECK(cudaFuncSetAttribute(variant.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(config.dynamicSmemBytes)));
    attributes[0].val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.numAttrs = 1;
    return resident_clusters(variant, blocks, config);
  };
  const int parts = parts_in_cluster(variant, params, stream.num_sms());
  if (parts > 0 && configure(parts, parts * variant.groups * 128 * 16) * parts >= params.num_items) {
    config.gridDim.x = static_cast<unsigned>(params.num_items);
  } else {
    const int clusters = std::min(params.num_items, configure(variant.cluster, 0));
    DI_CHECK(clusters > 0, "a product's kernel for {} tokens does not fit the card", variant.block_tokens);
    config.gridDim.x = static_cast<unsigned>(clusters * variant.cluster);
  }
  config.numAttrs = 2;
  params.partials = nullptr, params.left = nullptr;
  const int64_t bytes_of_sums = int64_t{variant.block_tokens} * variant.groups * kTileRows * 4;
  if (variant.block_tokens <= kFewTokens) {
    if (params.inbox_bytes == 0 && plan.num_partials > 0) {
      params.left = static_cast<uint4*>(stream.exchange(plan.num_partials * bytes_of_sums));
    }
  } else {
    const int64_t sums = variant.spread ? plan.num_partials : config.gridDim.x;
    if (sums > 0) params.partials = static_cast<float4*>(stream.scratch(sums * bytes_of_sums));
  }
  DI_CUDA_CHECK(cudaLaunchKernelEx(&config, variant.kernel, params));
}

}  // namespace

// With 128 outputs a block, one item for each of 132 multiprocessors, or two of half as many outputs: more parts would
// cost more in sums that are added up than they bring. No part has fewer bytes than nine tiles of E4M3.
int gemm_parts(const ops::PackedWeight& weight) {
  // The grouped output projection of the released models: eight of these run in one call.
  if (weight.rows == 1024 && weight.cols == 4096) return 2;
  const int64_t blocks = (weight.rows + 127) / 128;
  const int64_t bytes = column_tiles(weight) * tile_bytes(weight.format);
  const int64_t most = std::min<int64_t>(kMaxParts, bytes / (9 * tile_bytes(WeightFormat::kF8Tile32)));
  return static_cast<int>(std::max<int64_t>(std::min(132 / blocks, most), 1));
}

bool gemm_supports(const ops::LinearTask& task) {
  return task.in.type == ElementType::kBf16 && task.weight->format != WeightFormat::kF32 &&
         !packed_info(*task.weight).exact_only;
}

namespace {

// How long a launch for many tokens takes, in quarters of a microsecond: about half of a column tile of 128 tokens. One
// of 256 takes half as long again. Blocks take items until none is left; parts cost a little where one block adds them
// up, and more where blocks exchange them.
int64_t cost(const GemmVariant& variant, std::span<const ops::LinearTask> tasks, int num_sms) {
  constexpr int64_t kAddition = 3, kExchange = 12;  // of 128 tokens
  const int64_t sets = variant.block_tokens / 128, block_tiles = variant.groups * variant.cluster;
  int64_t items = 0, longest = 0;
  for (const ops::LinearTask& task : tasks) {
    const int64_t parts = gemm_parts(*task.weight), item_parts = variant.spread ? parts : 1;
    const int64_t blocks = (row_tiles(*task.weight) + block_tiles - 1) / block_tiles * variant.cluster *
                           ((task.in.rows + variant.block_tokens - 1) / variant.block_tokens);
    const int64_t tiles = (column_tiles(*task.weight) + item_parts - 1) / item_parts;
    const int64_t sums = !variant.spread ? (parts - 1) * kAddition : parts > 1 ? kExchange : 0;
    items += blocks * item_parts;
    longest = std::max(longest, tiles * (1 + sets) + sums * sets);
  }
  return (items + num_sms - 1) / num_sms * longest;
}

GemmShape choose_shape(const GemmVariants& variants, std::span<const ops::LinearTask> tasks, int num_sms) {
  int64_t tokens = 0, narrow_items = 0;
  for (const ops::LinearTask& task : tasks) {
    tokens = std::max(tokens, task.in.rows);
    narrow_items += row_tiles(*task.weight) * gemm_parts(*task.weight);
  }
  const bool narrow = narrow_items <= 2 * num_sms;
  if (tokens <= 8) return narrow ? k8Narrow : k8;
  if (tokens <= 16) return narrow ? k16Narrow : k16;
  if (tokens <= 64) return narrow_items <= num_sms ? k64Narrow : k64;
  GemmShape best = k256Whole;
  for (const GemmShape shape : {k256, k128Whole, k128}) {
    if (cost(variants[shape], tasks, num_sms) < cost(variants[best], tasks, num_sms)) best = shape;
  }
  return best;
}

}  // namespace

void run_gemm(CudaStream& stream, std::span<const ops::LinearTask> tasks) {
  for (const ops::LinearTask& task : tasks) {
    DI_CHECK(reinterpret_cast<uintptr_t>(task.in.data) % 16 == 0 && (task.in.stride % 8 == 0 || task.in.rows <= 1),
             "activations of a product at {}, stride {}: 16 bytes are the unit", static_cast<const void*>(task.in.data),
             task.in.stride);
  }
  for (WeightFormat format : {WeightFormat::kF8Tile32, WeightFormat::kMxfp4, WeightFormat::kBf16}) {
    std::array<ops::LinearTask, kMaxGemmTasks> same;
    size_t count = 0;
    for (const ops::LinearTask& task : tasks) {
      if (task.weight->format == format) same[count++] = task;
    }
    if (count == 0) continue;
    const GemmVariants& variants = format == WeightFormat::kF8Tile32 ? gemm_variants_f8()
                                   : format == WeightFormat::kMxfp4  ? gemm_variants_fp4()
                                                                     : gemm_variants_bf16();
    const std::span<const ops::LinearTask> group(same.data(), count);
    launch_variant(variants[choose_shape(variants, group, stream.num_sms())], stream, group);
  }
}

}  // namespace deepinfer::cuda
