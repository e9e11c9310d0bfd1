// The kernels of linear_gemm.cu: products of matrices of one format, all of a call in one persistent launch.
#pragma once

#include "backends/cuda/cluster.cuh"
#include "backends/cuda/gemm_exchange.cuh"
#include "backends/cuda/gemm_mainloop.cuh"
#include "backends/cuda/gemm_many_tokens.cuh"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/linear_gemm.cuh"

namespace deepinfer::cuda {

constexpr int kRowGroup = 8;  // blocks of outputs that share a wave, so that their weights and tokens stay in the L2

// Item `index` as block `rank` of a cluster sees it. Its block of rows may lie beyond the matrix.
template <bool kSpread, int kCluster>
__device__ __forceinline__ Item find_item(const GemmParams& params, int index, int rank) {
  Item item;
  item.task = 0;
  while (item.task + 1 < params.num_tasks && index >= params.first_items[item.task + 1]) ++item.task;
  const GemmTask& task = params.tasks[item.task];
  index -= params.first_items[item.task];
  item.part = kSpread ? index % task.num_parts : 0;
  const int place = kSpread ? index / task.num_parts : index;
  const int group = place / (kRowGroup * task.token_blocks);
  const int within = place - group * kRowGroup * task.token_blocks;
  const int size = min(kRowGroup, task.cluster_rows - group * kRowGroup);
  item.token_block = within / size;
  item.block_row = (group * kRowGroup + within % size) * kCluster + rank;
  item.block = item.token_block * task.cluster_rows * kCluster + item.block_row;
  return item;
}

__device__ __forceinline__ int part_begin(const GemmTask& task, int part) {
  return part * task.num_k_tiles / task.num_parts;
}

// Calls body(task, item, first column tile, number of tiles, stage's position) for all stages of all of this block's
// items, in order.
template <int N, bool kSpread, int kCluster, typename Body>
__device__ __forceinline__ void for_each_stage(const GemmParams& params, int num_stages, const Body& body) {
  const int rank = kCluster == 1 ? 0 : static_cast<int>(block_in_cluster());
  RingPosition at;
  for (int index = blockIdx.x / kCluster; index < params.num_items; index += gridDim.x / kCluster) {
    const Item item = find_item<kSpread, kCluster>(params, index, rank);
    const GemmTask& task = params.tasks[item.task];
    const int first = kSpread ? item.part : 0, last = kSpread ? item.part : task.num_parts - 1;
    for (int part = first; part <= last; ++part) {
      const int end = part_begin(task, part + 1);
      for (int k = part_begin(task, part); k < end; k += kStageTiles<N>) {
        body(task, item, k, min(kStageTiles<N>, end - k), at);
        at.advance(num_stages);
      }
    }
  }
}

// Two threads fill the ring, since weights need not wait for the kernel before and tokens do. The weights' announces a
// stage; that the tokens' may be ahead does no harm, because a barrier's phase ends with the announcement at the
// earliest.
template <WeightFormat kFormat, int N, bool kSpread, int kGroups, int kCluster>
__device__ __forceinline__ void produce_weights(const GemmParams& params, const Ring<kGroups, kCluster>& ring) {
  constexpr int kBytes = tile_bytes(kFormat);
  const uint64_t once = evict_first(), normal = evict_normal();
  for_each_stage<N, kSpread, kCluster>(
      params, ring.num_stages,
      [&](const GemmTask& task, const Item& item, int tile, int count, const RingPosition& at) {
        const int row = kGroups * item.block_row;
        WeightFill<N, kGroups> fill{task.tiles + static_cast<int64_t>(row) * task.num_k_tiles * kBytes,
                                    static_cast<int64_t>(task.num_k_tiles) * kBytes, min(kGroups, task.row_tiles - row),
                                    kBytes, task.bytes_of_slab};
        ring.wait_empty(at);
        fill.copy(ring, at.stage, tile, count, task.token_blocks == 1 ? once : normal);
      });
}
template <int N, bool kSpread, int kGroups, int kCluster>
__device__ __forceinline__ void produce_tokens(const GemmParams& params, const Ring<kGroups, kCluster>& ring) {
  const uint64_t always = evict_last(), normal = evict_normal();
  bool has_waited = false;
  for_each_stage<N, kSpread, kCluster>(
      params, ring.num_stages,
      [&](const GemmTask& task, const Item& item, int tile, int count, const RingPosition& at) {
        if (!has_waited) {
          prefetch_map(&params.tokens[item.task]);
          wait_for_kernel_before();
          has_waited = true;
        }
        ring.wait_empty(at);
        copy_tokens<N>(ring, &params.tokens[item.task], item.token_block * N, at.stage, tile, count,
                       task.token_blocks == 1 ? always : normal);
      });
}

template <WeightFormat kFormat, int N, bool kSpread, int kGroups, int kCluster>
__device__ __forceinline__ void consume(const GemmParams& params, const Ring<kGroups, kCluster>& ring, float* staging,
                                        const Inbox& inbox) {
  constexpr int kStaging = kWarpgroupStaging<kFormat, N>;
  const int rank = kCluster == 1 ? 0 : static_cast<int>(block_in_cluster());
  int group = threadIdx.x / 128;
  if constexpr (N == kFewTokens) group = __shfl_sync(0xFFFFFFFFu, group, 0);  // so that it stays in a register
  const int thread = threadIdx.x % 128;
  TurnsOf<N, kGroups>{true, group}.begin();
  staging += group * kStaging;
  RunningTotal<N, kStaging> total(params.partials, staging);
  RingPosition at;
  for (int index = blockIdx.x / kCluster; index < params.num_items; index += gridDim.x / kCluster) {
    const Item item = find_item<kSpread, kCluster>(params, index, rank);
    const GemmTask& task = params.tasks[item.task];
    const int row_tile = kGroups * item.block_row + group;
    const bool has_rows = row_tile < task.row_tiles;
    float d[N / 2];
#pragma unroll
    for (float& x : d) x = 0;
    if constexpr (kSpread) {
      const int num_tiles = part_begin(task, item.part + 1) - part_begin(task, item.part);
      if (has_rows) {
        const bool all_have_rows = kGroups * (item.block_row + 1) <= task.row_tiles;
        multiply_tiles<kFormat, N>(d, ring, at, num_tiles, group, thread, task.exponent, all_have_rows);
      } else {
        skip_tiles<N>(ring, at, num_tiles);
      }
      if (kGroups * item.block_row >= task.row_tiles) continue;
      if (task.num_parts > 1) {
        if constexpr (N >= kManyTokens) {
          finish_share<N, kStaging>(d, params, task, item, staging);
        } else {
          // Of the staging, for an item before.
          if (kStoresBoxes<N> && thread == 0) wait_for_reads_of_stores();
          if (params.inbox_bytes > 0) {
            exchange_in_cluster<N, kGroups>(d, task, item, inbox, staging);
          } else {
            exchange_in_memory<N, kGroups>(d, params, task, item, staging);
          }
        }
        continue;
      }
    } else {
      for (int part = 0; part < task.num_parts; ++part) {
        const int num_tiles = part_begin(task, part + 1) - part_begin(task, part);
        if (!has_rows) {
          skip_tiles<N>(ring, at, num_tiles);
          continue;
        }
        multiply_tiles<kFormat, N>(d, ring, at, num_tiles, group, thread, task.exponent);
        if (part > 0) total.add_to(d);
        if (part + 1 == task.num_parts) continue;
        if (part == 0) total.begin(2 + group);
        total.keep(d);
#pragma unroll
        for (float& x : d) x = 0;
      }
    }
    if (!has_rows) continue;
    const int first_token = item.token_block * N, first_output = row_tile * kTileRows;
    if constexpr (kStoresBoxes<N>) {
      if (task.stores_boxes) {
        write_boxes<N, box_tokens(N, kSpread), kStaging>(task.out, &params.outputs[item.task], d, first_token,
                                                         first_output, staging, 2 + group, thread);
        continue;
      }
      if (thread == 0) wait_for_reads_of_stores();
    }
    write_outputs<N>(task.out, d, first_token, first_output, staging, 2 + group, thread);
  }
}

// Whether a kernel's producers are a whole warpgroup, which gives its registers to the consumers.
__host__ __device__ constexpr bool moves_registers(int tokens, int blocks) { return tokens >= 64 && blocks == 1; }
__host__ __device__ constexpr int gemm_threads(int tokens, int groups, int blocks) {
  return groups * 128 + (moves_registers(tokens, blocks) ? 128 : 64);
}

// kBlocks: resident on a multiprocessor. Shared memory: the ring's stages, the inbox, the warpgroups' staging, the
// barriers, the last of them the inbox's.
template <WeightFormat kFormat, int N, bool kSpread, int kGroups, int kBlocks, int kCluster>
__global__ void __launch_bounds__(gemm_threads(N, kGroups, kBlocks), kBlocks)
    gemm_kernel(const __grid_constant__ GemmParams params) {
#ifdef DI_SM90A
  constexpr bool kMoves = moves_registers(N, kBlocks);
  extern __shared__ __align__(1024) std::byte shared[];
  auto* sums = reinterpret_cast<float4*>(shared + params.num_stages * params.ring_bytes);
  float* staging = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(sums) + params.inbox_bytes);
  std::byte* barriers = reinterpret_cast<std::byte*>(staging + kGroups * kWarpgroupStaging<kFormat, N>);
  const Ring<kGroups, kCluster> ring{shared, shared_address(barriers), shared_address(barriers) + 8 * kMaxGemmStages,
                                     params.num_stages, params.ring_bytes};
  const Inbox inbox{sums, shared_address(barriers) + 16 * kMaxGemmStages};
  const bool exchanges_in_cluster = N <= kFewTokens && params.inbox_bytes > 0;
  constexpr int kThreads = gemm_threads(N, kGroups, kBlocks), kProducers = kGroups * 128;
  let_next_kernel_start();
  if (threadIdx.x == kProducers) {
    if (exchanges_in_cluster) barrier_init(inbox.barrier, 1);
    ring.init();
  }
  if constexpr (kCluster == 1) {
    start_after_warp(kProducers / 32, kThreads);
  } else {
    sync_cluster();
  }
  if (exchanges_in_cluster) arrive_in_cluster();
  if (threadIdx.x >= kProducers) {
    if constexpr (kMoves) give_registers<40>();
    if (threadIdx.x == kProducers) produce_weights<kFormat, N, kSpread>(params, ring);
    if (threadIdx.x == kProducers + 32) produce_tokens<N, kSpread>(params, ring);
  } else {
    if constexpr (kMoves) take_registers<232>();
    consume<kFormat, N, kSpread, kGroups, kCluster>(params, ring, staging, inbox);
    // A block leaves its shared memory once that has been read; the kernel is over once all has been written.
    if (kStoresBoxes<N> && threadIdx.x % 128 == 0) wait_for_reads_of_stores();
  }
  // No block leaves while another may still write to it.
  if constexpr (kCluster > 1) {
    __syncwarp();
    sync_cluster();
  }
#else
  __trap();
#endif
}

template <WeightFormat kFormat, int N, bool kSpread, int kGroups, int kBlocks, int kCluster>
constexpr GemmVariant gemm_variant() {
  return {N,
          kSpread,
          kGroups,
          kCluster,
          gemm_kernel<kFormat, N, kSpread, kGroups, kBlocks, kCluster>,
          stage_bytes<N, kGroups>(tile_bytes(kFormat)),
          gemm_threads(N, kGroups, kBlocks),
          (228 / kBlocks - 1) * 1024,  // a block takes a KB besides
          kGroups * kWarpgroupStaging<kFormat, N> * 4 + 16 * kMaxGemmStages + 16};
}

// In the order of GemmShape.
template <WeightFormat kFormat>
constexpr GemmVariants kGemmVariants = {
    gemm_variant<kFormat, 8, true, 1, 2, 1>(),   gemm_variant<kFormat, 8, true, 2, 2, 1>(),
    gemm_variant<kFormat, 16, true, 1, 2, 1>(),  gemm_variant<kFormat, 16, true, 2, 2, 1>(),
    gemm_variant<kFormat, 64, true, 1, 1, 1>(),  gemm_variant<kFormat, 64, true, 2, 1, 1>(),
    gemm_variant<kFormat, 128, true, 2, 1, 2>(), gemm_variant<kFormat, 128, false, 2, 1, 2>(),
    gemm_variant<kFormat, 256, true, 2, 1, 2>(), gemm_variant<kFormat, 256, false, 2, 1, 2>(),
};

}  // namespace deepinfer::cuda
