// Products of packed weights with BF16 tokens on the tensor cores: one persistent launch for all matrices of a call.
//
// Floor: max(bytes of the packed weights / memory bandwidth, 2 rows cols tokens / BF16 rate).
//
// The sum over a matrix's columns is cut into gemm_parts(rows, cols) parts; each is summed from zero in ascending order,
// and the parts are added in the order of their index. With few tokens the parts of a block of outputs are items of
// different blocks: each leaves its sums in scratch memory, and whoever comes last adds them up. With many tokens one
// block runs the parts one after the other. Both give the same bits.
#include "backends/cuda/linear_gemm.cuh"

#include <cudaTypedefs.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <numeric>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/gemm_mainloop.cuh"
#include "backends/cuda/launch.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kSharedLimit = 227 * 1024;
constexpr int kMaxStages = 24;
constexpr int kRowGroup = 8;  // blocks of outputs that share a wave, so that their weights and tokens stay in the L2

struct Item {
  int task;
  int block_row;
  int token_block;
  int part;  // of an item that is one part
  int block; // number within the task, parts aside
};

template <bool kSpread>
__device__ __forceinline__ Item find_item(const GemmParams& params, int index) {
  Item item;
  item.task = 0;
  while (item.task + 1 < params.num_tasks && index >= params.tasks[item.task + 1].first_item) ++item.task;
  const GemmTask& task = params.tasks[item.task];
  index -= task.first_item;
  item.part = kSpread ? index % task.num_parts : 0;
  item.block = kSpread ? index / task.num_parts : index;
  const int group = item.block / (kRowGroup * task.token_blocks);
  const int within = item.block - group * kRowGroup * task.token_blocks;
  const int size = min(kRowGroup, task.block_rows - group * kRowGroup);
  item.token_block = within / size;
  item.block_row = group * kRowGroup + within % size;
  return item;
}

__device__ __forceinline__ int part_begin(const GemmTask& task, int part) {
  return part * task.num_k_tiles / task.num_parts;
}

// All stages of all of this block's items, in order. The weights of the first stages are fetched before the
// predecessor is complete.
template <int N, bool kSpread>
__device__ __forceinline__ void produce(const GemmParams& params, const Ring& ring) {
  constexpr int kTiles = kStageTiles<N>;
  const uint64_t weights_policy = evict_first(), tokens_policy = evict_last();
  int early = 0;  // stages whose weights are on their way
  for (int pass = 0; pass < 2; ++pass) {
    // Pass 0 only announces and fetches weights of the first use of each stage; pass 1 does the rest.
    RingPosition at;
    int stages = 0;
    for (int index = blockIdx.x; index < params.num_items; index += gridDim.x) {
      const Item item = find_item<kSpread>(params, index);
      const GemmTask& task = params.tasks[item.task];
      StageFill<N> fill;
      fill.bytes_of_tile = tile_bytes(task.format);
      const int row = 2 * item.block_row;
      for (int g = 0; g < 2; ++g) {
        fill.tiles[g] = row + g < task.row_tiles
                            ? task.tiles + static_cast<int64_t>(row + g) * task.num_k_tiles * fill.bytes_of_tile
                            : nullptr;
      }
      fill.tokens = &params.tokens[item.task];
      fill.first_token = item.token_block * N;
      const int first = kSpread ? item.part : 0, last = kSpread ? item.part : task.num_parts - 1;
      for (int part = first; part <= last; ++part) {
        const int end = part_begin(task, part + 1);
        for (int k = part_begin(task, part); k < end; k += kTiles) {
          const int count = min(kTiles, end - k);
          if (pass == 0 && stages == ring.num_stages) goto filled;
          if (pass == 1 && stages >= early) barrier_wait(ring.empty + 8 * at.stage, at.use ^ 1);
          if (pass == 0 || stages >= early) {
            fill.announce(ring, at.stage, count);
            fill.copy_weights(ring, at.stage, k, count, weights_policy);
          }
          if (pass == 1) fill.copy_tokens(ring, at.stage, k, count, tokens_policy);
          ++stages;
          at.advance(ring.num_stages);
        }
      }
    }
  filled:
    if (pass == 0) {
      early = stages;
      wait_for_kernel_before();
    }
  }
}

template <int N>
__device__ __forceinline__ void multiply_any(float (&d)[N / 2], const GemmTask& task, const Ring& ring,
                                             RingPosition& at, int num_tiles, int group, int thread) {
  switch (task.format) {
    case WeightFormat::kF8Tile32:
      return multiply_tiles<WeightFormat::kF8Tile32, N>(d, ring, at, num_tiles, group, thread, task.exponent);
    case WeightFormat::kMxfp4:
      return multiply_tiles<WeightFormat::kMxfp4, N>(d, ring, at, num_tiles, group, thread, task.exponent);
    default:
      return multiply_tiles<WeightFormat::kBf16, N>(d, ring, at, num_tiles, group, thread, task.exponent);
  }
}

// Leaves this item's sums for whoever comes last; that block returns true with all parts added into d.
template <int N>
__device__ __forceinline__ bool combine_parts(float (&d)[N / 2], const GemmParams& params, const GemmTask& task,
                                              const Item& item, int consumer, unsigned* seen) {
  constexpr int kVectors = N / 8;
  float4* block = params.partials + (task.first_partial + static_cast<int64_t>(item.block) * task.num_parts) *
                                        (kVectors * kConsumerWarps * 32) + consumer;
  float4* own = block + static_cast<int64_t>(item.part) * kVectors * kConsumerWarps * 32;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    __stcg(own + v * kConsumerWarps * 32, make_float4(d[4 * v], d[4 * v + 1], d[4 * v + 2], d[4 * v + 3]));
  }
  __threadfence();
  sync_threads(1, kConsumerWarps * 32);
  if (consumer == 0) {
    unsigned* counter = params.counters + task.first_counter + item.block;
    const unsigned before = atomicAdd(counter, 1u);
    if (before + 1 == static_cast<unsigned>(task.num_parts)) *counter = 0;
    *seen = before;
  }
  sync_threads(1, kConsumerWarps * 32);
  if (*seen + 1 != static_cast<unsigned>(task.num_parts)) return false;
  __threadfence();
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    float4 total = __ldcg(block + v * kConsumerWarps * 32);
    for (int part = 1; part < task.num_parts; ++part) {
      const float4 x = __ldcg(block + (static_cast<int64_t>(part) * kVectors + v) * kConsumerWarps * 32);
      total.x += x.x, total.y += x.y, total.z += x.z, total.w += x.w;
    }
    d[4 * v] = total.x, d[4 * v + 1] = total.y, d[4 * v + 2] = total.z, d[4 * v + 3] = total.w;
  }
  return true;
}

template <int N, bool kSpread>
__device__ __forceinline__ void consume(const GemmParams& params, const Ring& ring, float* staging, unsigned* seen) {
  const int consumer = threadIdx.x, group = consumer / 128, thread = consumer % 128;
  RingPosition at;
  for (int index = blockIdx.x; index < params.num_items; index += gridDim.x) {
    const Item item = find_item<kSpread>(params, index);
    const GemmTask& task = params.tasks[item.task];
    const bool has_rows = 2 * item.block_row + group < task.row_tiles;
    float d[N / 2];
#pragma unroll
    for (float& x : d) x = 0;
    if constexpr (kSpread) {
      const int num_tiles = part_begin(task, item.part + 1) - part_begin(task, item.part);
      if (has_rows) {
        multiply_any<N>(d, task, ring, at, num_tiles, group, thread);
      } else {
        skip_tiles<N>(ring, at, num_tiles, thread);
      }
      if (task.num_parts > 1 && !combine_parts<N>(d, params, task, item, consumer, seen)) continue;
    } else {
      float part_sum[N / 2];
#pragma unroll
      for (float& x : part_sum) x = 0;
      for (int part = 0; part < task.num_parts; ++part) {
        const int num_tiles = part_begin(task, part + 1) - part_begin(task, part);
        if (has_rows) {
          multiply_any<N>(part_sum, task, ring, at, num_tiles, group, thread);
        } else {
          skip_tiles<N>(ring, at, num_tiles, thread);
        }
#pragma unroll
        for (int i = 0; i < N / 2; ++i) d[i] = part == 0 ? part_sum[i] : d[i] + part_sum[i];
      }
    }
    if (has_rows) {
      write_outputs<N>(task.out, d, item.token_block * N, (2 * item.block_row + group) * kTileRows,
                       staging + group * kStagingFloats<N>, 2 + group, thread);
    }
  }
}

// Shared memory: the ring's stages, the warpgroups' staging, the barriers, the count that combine_parts saw.
template <int N, bool kSpread>
__global__ void __launch_bounds__(kGemmThreads, 1) gemm_kernel(const __grid_constant__ GemmParams params) {
#ifdef DI_SM90A
  extern __shared__ __align__(1024) std::byte shared[];
  float* staging = reinterpret_cast<float*>(shared + params.num_stages * params.ring_bytes);
  std::byte* barriers = reinterpret_cast<std::byte*>(staging + 2 * kStagingFloats<N>);
  auto* seen = reinterpret_cast<unsigned*>(barriers + 16 * kMaxStages);
  const Ring ring{shared, shared_address(barriers), shared_address(barriers) + 8 * kMaxStages, params.num_stages,
                  params.ring_bytes};
  let_next_kernel_start();
  if (threadIdx.x == 0) ring.init();
  __syncthreads();
  if (threadIdx.x >= kConsumerWarps * 32) {
    give_registers<40>();
    if (threadIdx.x == kConsumerWarps * 32) produce<N, kSpread>(params, ring);
  } else {
    take_registers<232>();
    consume<N, kSpread>(params, ring, staging, seen);
  }
#else
  __trap();
#endif
}

// The kernels, and what the host must know of each.
struct Variant {
  int block_tokens;
  bool spread;  // parts over blocks
  void (*kernel)(GemmParams);
  int (*stage_bytes)(int);
  int fixed_shared_bytes;
};
template <int N, bool kSpread>
constexpr Variant kVariant = {N, kSpread, gemm_kernel<N, kSpread>, stage_bytes<N>,
                              2 * kStagingFloats<N> * 4 + 16 * kMaxStages + 16};

// --- host ----------------------------------------------------------------------------------------------------------

PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
  static const auto encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    DI_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result));
    DI_CHECK(result == cudaDriverEntryPointSuccess, "the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }();
  return encoder;
}

CUtensorMap token_map(const ConstTensorView& in, int box_tokens) {
  CUtensorMap map;
  const cuuint64_t dims[2] = {static_cast<cuuint64_t>(in.cols), static_cast<cuuint64_t>(in.rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>((in.rows > 1 ? in.stride : (in.cols + 7) / 8 * 8) * 2)};
  const cuuint32_t box[2] = {kTileCols, static_cast<cuuint32_t>(box_tokens)};
  const cuuint32_t steps[2] = {1, 1};
  const CUresult result = tensor_map_encoder()(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<std::byte*>(in.data), dims, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  DI_CHECK(result == CUDA_SUCCESS, "no tensor map of [{}, {}], stride {} at {}: error {}", in.rows, in.cols, in.stride,
           static_cast<const void*>(in.data), static_cast<int>(result));
  return map;
}

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
  int ring_bytes = 0;
};

Plan make_plan(const Variant& variant, std::span<const ops::LinearTask> tasks) {
  Plan plan;
  plan.params.num_tasks = static_cast<int>(tasks.size());
  plan.params.num_items = 0;
  // Items that take longest start first.
  std::array<int, kMaxGemmTasks> order;
  std::iota(order.begin(), order.end(), 0);
  const auto cost = [&](int i) {
    const ops::PackedWeight& w = *tasks[i].weight;
    return column_tiles(w) * tile_bytes(w.format) / (variant.spread ? gemm_parts(w.rows, w.cols) : 1);
  };
  std::stable_sort(order.begin(), order.begin() + tasks.size(), [&](int a, int b) { return cost(a) > cost(b); });
  for (int i = 0; i < plan.params.num_tasks; ++i) {
    const ops::LinearTask& task = tasks[order[i]];
    const ops::PackedWeight& weight = *task.weight;
    const PackedInfo info = packed_info(weight);
    GemmTask& g = plan.params.tasks[i];
    g.tiles = weight.data.get();
    g.out = output_format(task, info.output_scale);
    g.format = weight.format;
    g.num_k_tiles = static_cast<int>(column_tiles(weight));
    g.row_tiles = static_cast<int>(row_tiles(weight));
    g.block_rows = (g.row_tiles + 1) / 2;
    g.token_blocks = (g.out.num_tokens + variant.block_tokens - 1) / variant.block_tokens;
    g.num_parts = gemm_parts(weight.rows, weight.cols);
    g.exponent = info.scale_bias + (weight.format == WeightFormat::kF8Tile32  ? kE4m3Exponent
                                    : weight.format == WeightFormat::kMxfp4 ? kE2m1Exponent
                                                                            : 0);
    g.first_item = plan.params.num_items;
    g.first_counter = plan.num_counters;
    g.first_partial = plan.num_partials;
    const int blocks = g.block_rows * g.token_blocks;
    plan.params.num_items += variant.spread ? blocks * g.num_parts : blocks;
    if (variant.spread && g.num_parts > 1) {
      plan.num_counters += blocks;
      plan.num_partials += int64_t{blocks} * g.num_parts;
    }
    plan.ring_bytes = std::max(plan.ring_bytes, variant.stage_bytes(tile_bytes(weight.format)));
    plan.params.tokens[i] = token_map(task.in, variant.block_tokens);
  }
  return plan;
}

void launch_variant(const Variant& variant, CudaStream& stream, std::span<const ops::LinearTask> tasks) {
  Plan plan = make_plan(variant, tasks);
  GemmParams& params = plan.params;
  if (params.num_items == 0) return;
  params.ring_bytes = plan.ring_bytes;
  params.num_stages = std::min((kSharedLimit - variant.fixed_shared_bytes) / plan.ring_bytes, kMaxStages);
  params.counters = counters_of(stream.handle(), plan.num_counters);
  params.partials = nullptr;
  if (plan.num_partials > 0) {
    params.partials = static_cast<float4*>(stream.scratch(plan.num_partials * variant.block_tokens * kBlockRows * 4));
  }
  const int shared = params.num_stages * params.ring_bytes + variant.fixed_shared_bytes;
  DI_CUDA_CHECK(cudaFuncSetAttribute(variant.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedLimit));
  launch(stream, Start::kEarly, dim3(std::min(params.num_items, stream.num_sms())), kGemmThreads, shared,
         variant.kernel, params);
}

}  // namespace

int gemm_parts(int64_t rows, int64_t cols) {
  const int64_t block_rows = (rows + kBlockRows - 1) / kBlockRows, tiles = (cols + kTileCols - 1) / kTileCols;
  const int64_t parts = std::min({int64_t{132} / block_rows, int64_t{kMaxParts}, tiles / 10});
  return static_cast<int>(std::max<int64_t>(parts, 1));
}

bool gemm_supports(const ops::LinearTask& task) {
  return task.in.type == ElementType::kBf16 && task.weight->format != WeightFormat::kF32 &&
         !packed_info(*task.weight).exact_only;
}

void run_gemm(CudaStream& stream, std::span<const ops::LinearTask> tasks) {
  int64_t tokens = 0, spread_items = 0, whole_items = 0;
  for (const ops::LinearTask& task : tasks) {
    DI_CHECK(reinterpret_cast<uintptr_t>(task.in.data) % 16 == 0 && (task.in.stride % 8 == 0 || task.in.rows <= 1),
             "activations of a product at {}, stride {}: 16 bytes are the unit", static_cast<const void*>(task.in.data),
             task.in.stride);
    tokens = std::max(tokens, task.in.rows);
  }
  for (const ops::LinearTask& task : tasks) {
    const int64_t blocks = (task.weight->rows + kBlockRows - 1) / kBlockRows * ((task.in.rows + 127) / 128);
    whole_items += blocks;
    spread_items += blocks * gemm_parts(task.weight->rows, task.weight->cols);
  }
  if (tokens <= 8) return launch_variant(kVariant<8, true>, stream, tasks);
  if (tokens <= 16) return launch_variant(kVariant<16, true>, stream, tasks);
  if (tokens <= 32) return launch_variant(kVariant<32, true>, stream, tasks);
  if (tokens <= 64) return launch_variant(kVariant<64, true>, stream, tasks);
  if (spread_items == whole_items && tokens > 128) return launch_variant(kVariant<256, true>, stream, tasks);
  if (whole_items < 2 * stream.num_sms()) return launch_variant(kVariant<128, true>, stream, tasks);
  return launch_variant(kVariant<128, false>, stream, tasks);
}

}  // namespace deepinfer::cuda
