// The plan of a step's experts, made by one block: counts, a scan, places. And what moves rows before and after the
// products.
//
// Floors: a few passes over num_tokens * top_k numbers; reading the slots' rows once and writing the outputs.
#include <algorithm>

#include "backends/cuda/cluster.cuh"
#include "backends/cuda/experts_items.cuh"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/pipeline.cuh"
#include "backends/cuda/values.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kPlanThreads = 1024, kPlanWarps = kPlanThreads / 32;
constexpr int kAtOnce = 4;
constexpr int kPlanBlocks = 8;  // a cluster, for many slots

__device__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Sums of two numbers over the threads before this one.
__device__ int2 exclusive_scan(int2 x, int2* warp_sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int2 sum = x;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int a = __shfl_up_sync(0xFFFFFFFFu, sum.x, step), b = __shfl_up_sync(0xFFFFFFFFu, sum.y, step);
    if (lane >= step) sum.x += a, sum.y += b;
  }
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    int2 total = warp_sums[lane];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int a = __shfl_up_sync(0xFFFFFFFFu, total.x, step), b = __shfl_up_sync(0xFFFFFFFFu, total.y, step);
      if (lane >= step) total.x += a, total.y += b;
    }
    warp_sums[lane] = total;
  }
  __syncthreads();
  const int2 before = warp == 0 ? make_int2(0, 0) : warp_sums[warp - 1];
  return {before.x + sum.x - x.x, before.y + sum.y - x.y};
}

__device__ void write_tiles(WorkTile* to, const ExpertMatrices* experts, int index, int first_row, int count, int tiles,
                            int shared) {
  if (tiles == 0) return;
  const int rows = even_rows(count, tiles);
  for (int i = 0; i < tiles; ++i) {
    to[i] = {experts[index], first_row + i * rows, max(min(rows, count - i * rows), 0), shared, index};
  }
}

// Of a cluster's blocks: `value` in the shared memory of block `block`.
__device__ int load_from_block(const int* value, int block) {
  int result;
  asm volatile("ld.shared::cluster.b32 %0, [%1];"
               : "=r"(result)
               : "r"(address_in(shared_address(value), block))
               : "memory");
  return result;
}

// Warp w of all the cluster's takes the w-th piece of the slots in order, 32 at a time: first it counts each expert's,
// then, knowing how many came before, it gives them their rows.
__global__ void __launch_bounds__(kPlanThreads)
    plan_kernel(const PlanShape shape, Rows<const int32_t> experts, Rows<const float> weights,
                const ExpertMatrices* matrices, const ExpertsPlan plan) {
  // [warps in use][experts], later those of the warps before; then the block's of every expert; then the first rows
  extern __shared__ int counts[];
  __shared__ int2 warp_sums[32];
  let_next_kernel_start();
  const int blocks = gridDim.x, block = blockIdx.x;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rows = shape.num_tokens * shape.top_k;
  const int all_warps = blocks * kPlanWarps, piece = (rows + 32 * all_warps - 1) / (32 * all_warps) * 32;
  const int warps = min(max((rows + piece - 1) / piece - block * kPlanWarps, 0), kPlanWarps);
  int* totals = counts + min((rows + piece - 1) / piece, kPlanWarps) * shape.num_experts;
  int* first_rows = totals + shape.num_experts;
  for (int i = threadIdx.x; i < warps * shape.num_experts; i += kPlanThreads) counts[i] = 0;
  __syncthreads();
  wait_for_kernel_before();
  int* own = counts + warp * shape.num_experts;
  const int begin = min((block * kPlanWarps + warp) * piece, rows), end = min(begin + piece, rows);
  // Several at a time, for their loads to overlap.
  const auto load_chosen = [&](int first, int(&chosen)[kAtOnce]) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int slot = first + 32 * i + lane;
      chosen[i] = slot < end ? experts.row(slot / shape.top_k)[slot % shape.top_k] : -1;
    }
  };
  for (int first = begin; first < end; first += 32 * kAtOnce) {
    int chosen[kAtOnce];
    load_chosen(first, chosen);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const unsigned same = __match_any_sync(0xFFFFFFFFu, chosen[i]);
      if (chosen[i] >= 0 && __ffs(same) - 1 == lane) own[chosen[i]] += __popc(same);
      __syncwarp();
    }
  }
  __syncthreads();
  const int expert = threadIdx.x;
  int of_block = 0;
  if (expert < shape.num_experts) {
    for (int w = 0; w < warps; w += 8) {
      int count[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) count[i] = w + i < warps ? counts[(w + i) * shape.num_experts + expert] : 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (w + i < warps) counts[(w + i) * shape.num_experts + expert] = of_block;
        of_block += count[i];
      }
    }
    totals[expert] = of_block;
  }
  int total = of_block, in_blocks_before = 0;
  if (blocks > 1) {
    sync_cluster();
    total = 0;
    if (expert < shape.num_experts) {
      for (int i = 0; i < blocks; ++i) {
        const int count = load_from_block(totals + expert, i);
        in_blocks_before += i < block ? count : 0;
        total += count;
      }
    }
    cluster_arrive();  // no block leaves while another may still read from it
  }
  const int tiles = (total + shape.tile_rows - 1) / shape.tile_rows;
  const int2 before = exclusive_scan(make_int2(total, tiles), warp_sums);
  const int shared_tiles = shape.shared_tiles();
  if (expert < shape.num_experts) first_rows[expert] = before.x + in_blocks_before;
  __syncthreads();
  for (int first = begin; first < end; first += 32 * kAtOnce) {
    int chosen[kAtOnce];
    float weight[kAtOnce];
    load_chosen(first, chosen);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int slot = first + 32 * i + lane;
      weight[i] = slot < end ? weights.row(slot / shape.top_k)[slot % shape.top_k] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int slot = first + 32 * i + lane;
      const unsigned same = __match_any_sync(0xFFFFFFFFu, chosen[i]);
      const bool valid = chosen[i] >= 0;
      const int row = valid ? first_rows[chosen[i]] + own[chosen[i]] + __popc(same & ((1u << lane) - 1)) : 0;
      __syncwarp();
      if (valid && __ffs(same) - 1 == lane) own[chosen[i]] += __popc(same);
      __syncwarp();
      if (!valid) continue;
      plan.slot_row[slot] = row;
      plan.row_token[row] = slot / shape.top_k;
      plan.row_weight[row] = weight[i];
    }
  }
  if (block == 0) {
    if (expert < shape.num_experts && tiles > 0) {
      write_tiles(plan.tiles + shared_tiles + before.y, matrices, expert, before.x, total, tiles, 0);
    }
    if (expert == shape.num_experts - 1) *plan.num_tiles = shared_tiles + before.y + tiles;
    if (expert < 2) plan.claims[expert] = 0;
    if (expert == kPlanThreads - 1) {
      write_tiles(plan.tiles, matrices, shape.num_experts, rows, shape.num_tokens, shared_tiles, 1);
    }
  }
  if (blocks > 1) cluster_wait();
}

// A block reads a token and writes it to the rows of its slots.
__global__ void scatter_kernel(uint4* out, const int32_t* slot_row, int top_k, Rows<const Bf16> in, int units) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const auto* from = reinterpret_cast<const uint4*>(in.row(blockIdx.x));
  for (int i = threadIdx.x; i < units; i += blockDim.x) {
    const uint4 value = from[i];
#pragma unroll 8
    for (int slot = 0; slot < top_k; ++slot) {
      out[static_cast<int64_t>(__ldcg(slot_row + blockIdx.x * top_k + slot)) * units + i] = value;
    }
  }
}

template <typename T>
__global__ void combine_kernel(Rows<T> out, const T* rows, const int32_t* slot_row, int top_k, int shared_first,
                               int width, bool round) {
  const int column = (blockIdx.y * blockDim.x + threadIdx.x) * kVec, token = blockIdx.x;
  wait_for_kernel_before();
  let_next_kernel_start();
  if (column >= width) return;
  float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll 8
  for (int slot = 0; slot <= top_k; ++slot) {
    const int64_t row = slot < top_k ? __ldcg(slot_row + token * top_k + slot) : shared_first + token;
    float x[8];
    load8(rows + row * width + column, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] += x[i];
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) sum[i] = round_bf16_if(sum[i], round);
  store8(out.row(token) + column, sum);
}

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

int PlanShape::most_tiles() const {
  return shared_tiles() + std::min(num_experts, num_rows()) + num_rows() / tile_rows;
}

int64_t plan_bytes(const PlanShape& shape) {
  return 256 + aligned(shape.most_tiles() * static_cast<int64_t>(sizeof(WorkTile))) + 3 * aligned(shape.num_rows() * 4);
}

ExpertsPlan plan_at(std::byte* memory, const PlanShape& shape) {
  ExpertsPlan plan;
  plan.num_tiles = reinterpret_cast<int*>(memory);
  plan.claims = plan.num_tiles + 1;
  memory += 256;
  plan.tiles = reinterpret_cast<WorkTile*>(memory);
  memory += aligned(shape.most_tiles() * static_cast<int64_t>(sizeof(WorkTile)));
  const int64_t each = aligned(shape.num_rows() * 4);
  plan.row_token = reinterpret_cast<int32_t*>(memory);
  plan.row_weight = reinterpret_cast<float*>(memory + each);
  plan.slot_row = reinterpret_cast<int32_t*>(memory + 2 * each);
  return plan;
}

void make_plan(CudaStream& stream, const PlanShape& shape, const ops::ExpertsArgs& args, const ExpertMatrices* experts,
               const ExpertsPlan& plan) {
  DI_CHECK(shape.num_experts < kPlanThreads, "{} experts; the plan takes at most {}", shape.num_experts,
           kPlanThreads - 1);
  const int blocks = shape.num_rows() > 2048 ? kPlanBlocks : 1;
  const int warps = std::min(kPlanWarps, (shape.num_rows() + 31) / 32);
  const size_t shared = static_cast<size_t>(warps + 2) * shape.num_experts * sizeof(int);
  DI_CUDA_CHECK(cudaFuncSetAttribute(plan_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024));
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(kPlanThreads);
  config.dynamicSmemBytes = shared;
  config.stream = stream.handle();
  config.attrs = attributes;
  config.numAttrs = blocks > 1 ? 2 : 1;
  DI_CUDA_CHECK(cudaLaunchKernelEx(&config, plan_kernel, shape,
                                   Rows<const int32_t>{args.experts.data, args.experts.stride},
                                   Rows<const float>{args.weights.data, args.weights.stride}, experts, plan));
}

void scatter_tokens(CudaStream& stream, const PlanShape& shape, const ExpertsPlan& plan, const ConstTensorView& in,
                    std::byte* out) {
  launch(stream, Start::kEarly, dim3(shape.num_tokens), row_threads(in.cols), 0, scatter_kernel,
         reinterpret_cast<uint4*>(out), plan.slot_row, shape.top_k, rows_of<const Bf16>(in),
         static_cast<int>(in.cols / kVec));
}

void combine_rows(CudaStream& stream, const PlanShape& shape, const ExpertsPlan& plan, const std::byte* rows,
                  ElementType type, const ops::ExpertsArgs& args) {
  const int width = static_cast<int>(args.out.cols), threads = std::min(256, row_threads(width));
  const dim3 blocks(shape.num_tokens, static_cast<unsigned>((width / kVec + threads - 1) / threads));
  with_element(type, [&]<typename T>(T) {
    launch(stream, Start::kEarly, blocks, threads, 0, combine_kernel<T>, rows_of<T>(args.out),
           reinterpret_cast<const T*>(rows), plan.slot_row, shape.top_k, shape.num_rows(), width, args.round_to_bf16);
  });
}

}  // namespace deepinfer::cuda
