// The kernels of linear_gemm.cu: products of matrices of one format, all of a call in one persistent launch.
#pragma once

#include "backends/cuda/gemm_mainloop.cuh"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/linear_gemm.cuh"

namespace deepinfer::cuda {

constexpr int kRowGroup = 8;  // blocks of outputs that share a wave, so that their weights and tokens stay in the L2

struct Item {
  int task;
  int block_row;
  int token_block;
  int part;   // of an item that is one part
  int block;  // number within the task, parts aside
};

// Item `index` as block `rank` of a cluster sees it. Its block of rows may lie beyond the matrix.
template <bool kSpread, int kCluster>
__device__ __forceinline__ Item find_item(const GemmParams& params, int index, int rank) {
  Item item;
  item.task = 0;
  while (item.task + 1 < params.num_tasks && index >= params.tasks[item.task + 1].first_item) ++item.task;
  const GemmTask& task = params.tasks[item.task];
  index -= task.first_item;
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

// One warpgroup's 64 outputs from `first_output` on, rounded to BF16, of N tokens: stored by the copy engine, which
// reads the staging while the next item is on its way. `staging`: kBoxTokens rows of 128 bytes, at a multiple of 1024.
template <int N>
__device__ __forceinline__ void write_boxes(const OutputFormat& out, const CUtensorMap* map, const float (&d)[N / 2],
                                            int first_token, int first_output, float* staging, int barrier,
                                            int thread) {
  const int warp = thread / 32, lane = thread % 32;
  const int to_token = lane % 8 + lane / 16 * 8, to_unit = 2 * warp + lane / 8 % 2;  // as in write_rounded
  const uint32_t base = shared_address(staging);
#pragma unroll
  for (int box = 0; box < N / kBoxTokens; ++box) {
    if (first_token + box * kBoxTokens >= out.num_tokens) break;
    if (thread == 0) wait_for_reads_of_stores();
    sync_threads(barrier, 128);
#pragma unroll
    for (int j = 0; j < kBoxTokens / 16; ++j) {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = box * kBoxTokens / 2 + 8 * j + 2 * i;
        pairs[i] = pack_bf16(d[at] * out.scale, d[at + 1] * out.scale);
      }
      const int token = 16 * j + to_token;
      store_transposed(base + token * 128 + ((to_unit ^ (token % 8)) << 4), pairs);
    }
    fence_async_proxy();
    sync_threads(barrier, 128);
    if (thread == 0) store_box(map, first_output, first_token + box * kBoxTokens, base);
  }
}

// All stages of all of this block's items, in order. The weights of the first stages are fetched before the
// predecessor is complete.
template <WeightFormat kFormat, int N, bool kSpread, int kCluster>
__device__ __forceinline__ void produce(const GemmParams& params, const Ring<kCluster>& ring) {
  constexpr int kTiles = kStageTiles<N>;
  const int rank = kCluster == 1 ? 0 : static_cast<int>(block_in_cluster());
  const uint64_t once = evict_first(), always = evict_last(), normal = evict_normal();
  int early = 0;  // stages whose weights are on their way
  for (int pass = 0; pass < 2; ++pass) {
    // Pass 0 only announces and fetches weights of the first use of each stage; pass 1 does the rest.
    RingPosition at;
    int stages = 0;
    for (int index = blockIdx.x / kCluster; index < params.num_items; index += gridDim.x / kCluster) {
      const Item item = find_item<kSpread, kCluster>(params, index, rank);
      const GemmTask& task = params.tasks[item.task];
      const bool once_only = task.token_blocks == 1;
      StageFill<N, kCluster> fill;
      fill.bytes_of_tile = tile_bytes(kFormat);
      const int row = 2 * item.block_row;
      for (int g = 0; g < 2; ++g) {
        fill.tiles[g] = row + g < task.row_tiles
                            ? task.tiles + static_cast<int64_t>(row + g) * task.num_k_tiles * fill.bytes_of_tile
                            : nullptr;
      }
      fill.tokens = &params.tokens[item.task];
      fill.first_token = item.token_block * N;
      if (pass == 0) prefetch_map(fill.tokens);
      const int first = kSpread ? item.part : 0, last = kSpread ? item.part : task.num_parts - 1;
      for (int part = first; part <= last; ++part) {
        const int end = part_begin(task, part + 1);
        for (int k = part_begin(task, part); k < end; k += kTiles) {
          const int count = min(kTiles, end - k);
          if (pass == 0 && stages == ring.num_stages) goto filled;
          if (pass == 1 && stages >= early) barrier_wait(ring.empty + 8 * at.stage, at.use ^ 1);
          if (pass == 0 || stages >= early) {
            fill.announce(ring, at.stage, count);
            fill.copy_weights(ring, at.stage, k, count, once_only ? once : normal);
          }
          if (pass == 1) fill.copy_tokens(ring, at.stage, k, count, once_only ? always : normal);
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

// Where the sums of a block's parts lie: [part][N / 8 groups of eight tokens][256 threads], as the threads hold them.
template <int N>
struct Partials {
  static constexpr int kGroups = N / 8, kConsumers = kConsumerWarps * 32;
  float4* first;  // of this thread
  int num_parts;
  int num_groups;  // that hold tokens

  __device__ __forceinline__ float4* at(int part, int group) const {
    return first + (part * kGroups + group) * kConsumers;
  }
  __device__ __forceinline__ void leave(int part, const float (&d)[N / 2]) const {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (g < num_groups) __stcg(at(part, g), make_float4(d[4 * g], d[4 * g + 1], d[4 * g + 2], d[4 * g + 3]));
    }
  }
  // The parts' sum, in the order of their index; eight are on their way at once.
  __device__ __forceinline__ void add_up(int group, float (&sum)[4]) const {
#pragma unroll 1
    for (int part = 0; part < num_parts; part += 8) {
      float4 x[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (part + i < num_parts) x[i] = __ldcg(at(part + i, group));
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (part + i >= num_parts) continue;
        const bool start = part + i == 0;
        sum[0] = start ? x[i].x : sum[0] + x[i].x, sum[1] = start ? x[i].y : sum[1] + x[i].y;
        sum[2] = start ? x[i].z : sum[2] + x[i].z, sum[3] = start ? x[i].w : sum[3] + x[i].w;
      }
    }
  }
};

// An item that is one part of its sums. All parts of a block meet at its counter. Few tokens: whoever comes last adds
// the parts up. Many: each waits for the others and then adds up its share of the tokens. Waiting ends, because a
// block's parts are consecutive items, every multiprocessor takes items in ascending order, and all blocks of the grid
// are resident together: the parts of the first block that is not complete are running or done.
template <int N>
__device__ __forceinline__ void finish_part(const float (&d)[N / 2], const GemmParams& params, const GemmTask& task,
                                            const Item& item, float* staging, unsigned* seen) {
  const int consumer = threadIdx.x, group = consumer / 128, thread = consumer % 128;
  const int row_tile = 2 * item.block_row + group, first_token = item.token_block * N;
  const auto num_parts = static_cast<unsigned>(task.num_parts);
  constexpr int kConsumers = Partials<N>::kConsumers, kGroups = Partials<N>::kGroups;
  const int64_t first = (task.first_partial + static_cast<int64_t>(item.block) * task.num_parts) * kGroups * kConsumers;
  const Partials<N> partials{params.partials + first + consumer, task.num_parts,
                             min(kGroups, (task.out.num_tokens - first_token + 7) / 8)};
  unsigned* counter = params.counters + task.first_counter + item.block;
  partials.leave(item.part, d);
  sync_threads(1, kConsumers);
  if (consumer == 0) {
    unsigned before = count_arrival(counter);
    if constexpr (kGroups < 4) {
      if (before + 1 == num_parts) *counter = 0;
    } else {
      while (count_of_arrivals(counter) < num_parts) __nanosleep(32);
      before = count_arrival(counter);
      if (before + 1 == 2 * num_parts) *counter = 0;  // all have seen it
    }
    *seen = before;
  }
  sync_threads(1, kConsumers);
  if (kGroups < 4 && *seen + 1 != num_parts) return;
  const int step = kGroups < 4 ? 1 : task.num_parts;
  for (int g = kGroups < 4 ? 0 : item.part; g < partials.num_groups; g += step) {
    float sum[4];
    partials.add_up(g, sum);
    if (row_tile >= task.row_tiles) continue;
    write_outputs<8>(task.out, sum, first_token + 8 * g, row_tile * kTileRows, staging + group * kWarpgroupStaging<N>,
                     2 + group, thread);
  }
}

template <WeightFormat kFormat, int N, bool kSpread, int kCluster>
__device__ __forceinline__ void consume(const GemmParams& params, const Ring<kCluster>& ring, float* staging,
                                        unsigned* seen) {
  const int rank = kCluster == 1 ? 0 : static_cast<int>(block_in_cluster());
  const int consumer = threadIdx.x, group = consumer / 128, thread = consumer % 128;
  RingPosition at;
  for (int index = blockIdx.x / kCluster; index < params.num_items; index += gridDim.x / kCluster) {
    const Item item = find_item<kSpread, kCluster>(params, index, rank);
    const GemmTask& task = params.tasks[item.task];
    const bool has_rows = 2 * item.block_row + group < task.row_tiles;
    float d[N / 2];
#pragma unroll
    for (float& x : d) x = 0;
    if constexpr (kSpread) {
      const int num_tiles = part_begin(task, item.part + 1) - part_begin(task, item.part);
      if (has_rows) {
        multiply_tiles<kFormat, N>(d, ring, at, num_tiles, group, thread, task.exponent);
      } else {
        skip_tiles<N>(ring, at, num_tiles);
      }
      if (2 * item.block_row >= task.row_tiles) continue;
      if (task.num_parts > 1) {
        finish_part<N>(d, params, task, item, staging, seen);
        continue;
      }
    } else {
      for (int part = 0; part < task.num_parts; ++part) {
        float part_sum[N / 2];
#pragma unroll
        for (float& x : part_sum) x = 0;
        const int num_tiles = part_begin(task, part + 1) - part_begin(task, part);
        if (has_rows) {
          multiply_tiles<kFormat, N>(part_sum, ring, at, num_tiles, group, thread, task.exponent);
        } else {
          skip_tiles<N>(ring, at, num_tiles);
        }
#pragma unroll
        for (int i = 0; i < N / 2; ++i) d[i] = part == 0 ? part_sum[i] : d[i] + part_sum[i];
      }
    }
    if constexpr (N >= kBoxTokens) {
      if (has_rows && task.stores_boxes) {
        write_boxes<N>(task.out, &params.outputs[item.task], d, item.token_block * N,
                       (2 * item.block_row + group) * kTileRows, staging + group * kWarpgroupStaging<N>, 2 + group,
                       thread);
        continue;
      }
    }
    if (has_rows) {
      if (N >= kBoxTokens && thread == 0) wait_for_reads_of_stores();
      write_outputs<N>(task.out, d, item.token_block * N, (2 * item.block_row + group) * kTileRows,
                       staging + group * kWarpgroupStaging<N>, 2 + group, thread);
    }
  }
}

// Shared memory: the ring's stages, the warpgroups' staging, the barriers, the count that finish_part saw.
template <WeightFormat kFormat, int N, bool kSpread, int kCluster>
__global__ void __launch_bounds__(kGemmThreads<N>, kTwoBlocks<N> ? 2 : 1)
    gemm_kernel(const __grid_constant__ GemmParams params) {
#ifdef DI_SM90A
  extern __shared__ __align__(1024) std::byte shared[];
  float* staging = reinterpret_cast<float*>(shared + params.num_stages * params.ring_bytes);
  std::byte* barriers = reinterpret_cast<std::byte*>(staging + 2 * kWarpgroupStaging<N>);
  auto* seen = reinterpret_cast<unsigned*>(barriers + 16 * kMaxGemmStages);
  const Ring<kCluster> ring{shared, shared_address(barriers), shared_address(barriers) + 8 * kMaxGemmStages,
                            params.num_stages, params.ring_bytes};
  let_next_kernel_start();
  if (threadIdx.x == 0) ring.init();
  if constexpr (kCluster == 1) {
    __syncthreads();
  } else {
    sync_cluster();
  }
  if (threadIdx.x >= kConsumerWarps * 32) {
    if constexpr (!kTwoBlocks<N>) give_registers<40>();
    if (threadIdx.x == kConsumerWarps * 32) produce<kFormat, N, kSpread, kCluster>(params, ring);
  } else {
    if constexpr (!kTwoBlocks<N>) take_registers<232>();
    consume<kFormat, N, kSpread, kCluster>(params, ring, staging, seen);
    if (N >= kBoxTokens && threadIdx.x % 128 == 0) wait_for_stores();
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

template <WeightFormat kFormat, int N, bool kSpread, int kCluster>
constexpr GemmVariant gemm_variant() {
  return {N,
          kSpread,
          kCluster,
          gemm_kernel<kFormat, N, kSpread, kCluster>,
          stage_bytes<N>(tile_bytes(kFormat)),
          kGemmThreads<N>,
          kSharedLimit<N>,
          2 * kWarpgroupStaging<N> * 4 + 16 * kMaxGemmStages + 16};
}

// In the order of GemmShape.
template <WeightFormat kFormat>
constexpr GemmVariants kGemmVariants = {
    gemm_variant<kFormat, 8, true, 1>(),   gemm_variant<kFormat, 16, true, 1>(),
    gemm_variant<kFormat, 32, true, 1>(),  gemm_variant<kFormat, 64, true, 1>(),
    gemm_variant<kFormat, 128, true, 2>(), gemm_variant<kFormat, 128, false, 2>(),
    gemm_variant<kFormat, 256, true, 2>(),
};

}  // namespace deepinfer::cuda
