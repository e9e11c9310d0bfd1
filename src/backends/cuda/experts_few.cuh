// The kernel for few rows an expert: one persistent launch for w1 and w3 of all experts, one for w2.
//
// Floor of both: the bytes of the experts that have rows / memory bandwidth.
//
// An item is a WorkTile times 64 rows of w1 and the same 64 of w3, or 128 rows of w2. Who computes an item has no part
// in its bits.
#pragma once

#include <type_traits>

#include "backends/cuda/experts_direct.cuh"
#include "backends/cuda/experts_epilogue.cuh"
#include "backends/cuda/experts_items.cuh"
#include "backends/cuda/experts_mainloop.cuh"
#include "backends/cuda/launch.cuh"

namespace deepinfer::cuda {

struct FewParams : ItemParams {
  CUtensorMap routed_rows, shared_rows;    // boxes of kMost rows
  int routed_box_tiles, shared_box_tiles;  // column tiles of a box: a stage's, or one
  // Every item of w1 and w3 multiplies all tokens of the step, of which row_token says what rows are.
  bool all_tokens = false;
  const int32_t* row_token = nullptr;
  RowsOut out;
  const std::byte* prefetch[2] = {};  // matrices of so many bytes that every step reads
  int64_t prefetch_bytes = 0;
  // Without a plan in memory:
  DirectShape direct = {};
  unsigned* arrivals = nullptr;  // [items_per_tile] of w2: tiles that are done; zeros between kernels
  std::byte* sums = nullptr;     // where the sum of a token's rows goes
  int64_t sums_stride = 0;
  bool sums_are_bf16 = false;
};

// The plan that make_plan left.
class StoredPlan {
 public:
  __device__ __forceinline__ explicit StoredPlan(const FewParams& params)
      : params_(params), num_tiles_(__ldcg(params.num_tiles)) {}
  __device__ __forceinline__ int num_tiles() const { return num_tiles_; }
  __device__ __forceinline__ WorkTile tile(int index) const { return load_tile(params_.tiles + index); }

 private:
  const FewParams& params_;
  int num_tiles_;
};
class UnstoredPlan : public DirectPlan {
 public:
  __device__ __forceinline__ explicit UnstoredPlan(const FewParams& params)
      : DirectPlan(params.direct, kDirectTileRows) {}
};
template <class Kind>
using PlanOf = std::conditional_t<Kind::kDirect, UnstoredPlan, StoredPlan>;

// What the blocks of a direct kernel keep of the plan in shared memory.
struct DirectRows {
  float weights[32];
  int tokens[32];
  int is_last;
};

template <class Kind>
constexpr int kSharedBytes = Kind::kStages* Kind::kStageBytes + 2 * Kind::kStagedTokens* kStagedStride * 4 +
                             20 * Kind::kStages + (Kind::kDirect ? sizeof(DirectRows) : 0);

template <bool kGateUp>
struct ItemMatrices {
  const std::byte* tiles[2];  // of the two warpgroups; null: no rows
};
template <bool kGateUp>
__device__ __forceinline__ ItemMatrices<kGateUp> matrices_of(const WorkTile& tile, int block, int row_tiles,
                                                             int64_t row_tile_bytes) {
  ItemMatrices<kGateUp> m;
  if constexpr (kGateUp) {
    const bool has = block < row_tiles;
    m.tiles[0] = has ? tile.expert.w1.tiles + block * row_tile_bytes : nullptr;
    m.tiles[1] = has ? tile.expert.w3.tiles + block * row_tile_bytes : nullptr;
  } else {
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      m.tiles[g] = 2 * block + g < row_tiles ? tile.expert.w2.tiles + (2 * block + g) * row_tile_bytes : nullptr;
    }
  }
  return m;
}

// What the producer knows of an item.
template <class Kind, bool kGateUp>
struct Source {
  ItemMatrices<kGateUp> matrices;
  const CUtensorMap* map;
  int stage_tiles, box_tiles, bytes_of_tile, groups;
  int first_row;  // of the map

  __device__ __forceinline__ Source(const FewParams& params, const PlanOf<Kind>& plan, int index) {
    const WorkTile tile = plan.tile(index / params.items_per_tile);
    const WeightFormat format = tile.shared ? params.shared_format : params.routed_format;
    stage_tiles = cuda::stage_tiles<Kind>(format, Kind::kMost);
    bytes_of_tile = tile_bytes(format);
    matrices = matrices_of<kGateUp>(tile, index % params.items_per_tile, params.row_tiles,
                                    int64_t{params.num_k_tiles} * bytes_of_tile);
    groups = (matrices.tiles[0] != nullptr) + (matrices.tiles[1] != nullptr);
    box_tiles = tile.shared ? params.shared_box_tiles : params.routed_box_tiles;
    map = tile.shared ? &params.shared_rows : &params.routed_rows;
    first_row = params.all_tokens ? 0 : tile.first_row - (tile.shared ? params.shared_first : 0);
  }
  // By one lane.
  __device__ __forceinline__ void copy_weights(uint32_t stage, uint32_t barrier, int k, int count,
                                               uint64_t policy) const {
    barrier_expect(barrier, max(box_tiles, count) * Kind::kMost * 128 + count * groups * bytes_of_tile);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      if (matrices.tiles[g] == nullptr) continue;
      copy_bulk(stage + stage_tiles * (Kind::kMost * 128 + g * bytes_of_tile),
                matrices.tiles[g] + static_cast<int64_t>(k) * bytes_of_tile, count * bytes_of_tile, barrier, policy);
    }
  }
  __device__ __forceinline__ void copy_rows(uint32_t stage, uint32_t barrier, int k, int count, uint64_t policy) const {
    if (box_tiles > 1) return copy_box(stage, map, 0, first_row, k, barrier, policy);
    for (int j = 0; j < count; ++j) {
      copy_box(stage + j * Kind::kMost * 128, map, (k + j) * kTileCols, first_row, 0, barrier, policy);
    }
  }
};

// While the plan is being made: the shared expert's matrices on their way to the L2.
__device__ __forceinline__ void prefetch_shared(const FewParams& params, int lane) {
  constexpr int64_t kPiece = 8192;
  const int64_t pieces = params.prefetch_bytes / kPiece;
  for (int64_t i = blockIdx.x * 32 + lane; i < 2 * pieces; i += gridDim.x * 32) {
    prefetch_bulk(params.prefetch[i % 2] + i / 2 * kPiece, kPiece);
  }
}

// All stages of this block's items, in order. One warp. A block takes another item when it has fetched one: those of a
// multiprocessor run at different speeds. In the second product the weights of the first stages are
// fetched before the first product is complete: the plan is, or this kernel would not have started.
template <class Kind, bool kGateUp>
__device__ __forceinline__ void produce(const FewParams& params, const ExpertsRing<Kind>& ring) {
  const int lane = threadIdx.x % 32, blocks = gridDim.x;
  const uint64_t once = evict_first(), keep = evict_last();
  const uint32_t stages = shared_address(ring.stages);
  if constexpr (kGateUp) prefetch_shared(params, lane);
  RingPosition at;
  int early = 0;  // stages whose weights are on their way
  if constexpr (!kGateUp) {
    const PlanOf<Kind> plan(params);
    if (static_cast<int>(blockIdx.x) < plan.num_tiles() * params.items_per_tile) {
      const Source<Kind, kGateUp> source(params, plan, blockIdx.x);
      for (int k = 0; k < params.num_k_tiles && early < Kind::kStages; k += source.stage_tiles, ++early) {
        if (lane != 0) continue;
        if (k == 0) ring.items[0] = blockIdx.x;
        source.copy_weights(stages + early * Kind::kStageBytes, ring.full(early), k,
                            min(source.stage_tiles, params.num_k_tiles - k), once);
      }
      __syncwarp();
    }
  }
  wait_for_kernel_before();
  let_next_kernel_start();
  const PlanOf<Kind> plan(params);
  const int num_items = plan.num_tiles() * params.items_per_tile;
  int round = 0;
  for (int index = blockIdx.x; index < num_items;) {
    // Known when this item has been fetched.
    int next = 0;
    if constexpr (Kind::kDirect) {
      next = item_of(++round, blockIdx.x, blocks);
      if (next >= num_items) next = item_of(++round, blockIdx.x, blocks);
    } else if (lane == 0) {
      next = blocks + atomicAdd(params.claims, 1);
    }
    const Source<Kind, kGateUp> source(params, plan, index);
    for (int k = 0; k < params.num_k_tiles; k += source.stage_tiles, --early) {
      const int count = min(source.stage_tiles, params.num_k_tiles - k);
      const uint32_t barrier = ring.full(at.stage), stage = stages + at.stage * Kind::kStageBytes;
      barrier_wait(ring.empty(at.stage), at.use ^ 1);
      if (lane == 0) {
        if (early <= 0) {
          if (k == 0) ring.items[at.stage] = index;
          source.copy_weights(stage, barrier, k, count, once);
        }
        source.copy_rows(stage, barrier, k, count, keep);
      }
      at.advance(Kind::kStages);
    }
    index = __shfl_sync(0xFFFFFFFFu, next, 0);
  }
  barrier_wait(ring.empty(at.stage), at.use ^ 1);
  if (lane == 0) {
    ring.items[at.stage] = -1;
    barrier_arrive(ring.full(at.stage));
  }
}

template <class Kind, bool kGateUp>
__device__ __forceinline__ void run_item(const FewParams& params, const WorkTile& tile, int block,
                                         const ExpertsRing<Kind>& ring, RingPosition& at, float* staging,
                                         const DirectRows* direct, int consumer) {
  constexpr int kTokens = Kind::kStagedTokens, N = Kind::kMost;
  const int group = consumer / 128, thread = consumer % 128;
  const int row_tile = kGateUp ? block : 2 * block + group;
  const WeightFormat format = tile.shared ? params.shared_format : params.routed_format;
  if (row_tile >= params.row_tiles) {
    skip_stages(ring, at, params.num_k_tiles, stage_tiles<Kind>(format, N));
    return;
  }
  const ExpertMatrix& matrix = !kGateUp ? tile.expert.w2 : group == 0 ? tile.expert.w1 : tile.expert.w3;
  const int exponent = matrix.exponent;
  const float scale = matrix.scale;
  float d[N / 2];
#pragma unroll
  for (float& x : d) x = 0;
  if (format == WeightFormat::kMxfp4) {
    multiply_stages<Kind, WeightFormat::kMxfp4, N>(d, ring, at, params.num_k_tiles, group, thread, exponent);
  } else {
    multiply_stages<Kind, WeightFormat::kF8Tile32, N>(d, ring, at, params.num_k_tiles, group, thread, exponent);
  }
  if constexpr (kGateUp) {
    const auto about_row = [&](int i) -> AboutRow {
      const int row = tile.first_row + i;
      if (tile.shared) return {1.0f, i};
      if constexpr (Kind::kDirect) return {direct->weights[row], direct->tokens[row]};
      return {__ldcg(params.row_weight + row), params.all_tokens ? __ldcg(params.row_token + row) : i};
    };
    write_activation<kTokens, N>(params.out, d, scale, tile.first_row, tile.num_rows, row_tile * kTileRows, about_row,
                                 params.limit, params.quantise, staging, consumer);
  } else {
    write_products<kTokens, N>(params.out, d, scale, tile.first_row, tile.num_rows, row_tile * kTileRows,
                               staging + group * kTokens * kStagedStride, 2 + group, thread);
  }
}

// The sums of the tokens' rows, slots in order and then the shared expert's, of the 128 outputs of item `part`. A warp
// takes a token at a time.
__device__ __forceinline__ void sum_rows(const FewParams& params, const DirectPlan& plan, int part, int consumer) {
  const int lane = consumer % 32, column = part * 2 * kTileRows + lane * 4, top_k = params.direct.top_k;
  for (int token = consumer / 32; token < params.direct.num_tokens; token += kExpertsConsumers / 32) {
    float sum[4] = {0, 0, 0, 0};
#pragma unroll 8
    for (int slot = 0; slot <= top_k; ++slot) {
      const int row = slot < top_k ? plan.row_of(token * top_k + slot) : params.direct.num_tokens * top_k + token;
      if (column >= params.out.num_outputs) continue;
      const uint2 bits = __ldcg(reinterpret_cast<const uint2*>(params.out.data + row * params.out.stride + column));
      sum[0] += low_bf16(bits.x), sum[1] += high_bf16(bits.x), sum[2] += low_bf16(bits.y), sum[3] += high_bf16(bits.y);
    }
    if (column >= params.out.num_outputs) continue;
    const uint2 rounded = {pack_bf16(sum[0], sum[1]), pack_bf16(sum[2], sum[3])};
    const int64_t at = token * params.sums_stride + column;
    if (params.sums_are_bf16) {
      *reinterpret_cast<uint2*>(params.sums + at * 2) = rounded;
    } else {
      *reinterpret_cast<float4*>(params.sums + at * 4) =
          make_float4(low_bf16(rounded.x), high_bf16(rounded.x), low_bf16(rounded.y), high_bf16(rounded.y));
    }
  }
}

template <class Kind, bool kGateUp>
__device__ __forceinline__ void consume(const FewParams& params, const ExpertsRing<Kind>& ring, float* staging,
                                        DirectRows* direct) {
  const int consumer = threadIdx.x;
  if constexpr (kGateUp) {
    wait_for_kernel_before();
    let_next_kernel_start();
  }
  // The second product's kernel would not have started without the plan, or what it is made of.
  const PlanOf<Kind> plan(params);
  const int num_tiles = plan.num_tiles();
  if constexpr (kGateUp && Kind::kDirect) {
    const DirectShape& shape = params.direct;
    if (consumer < shape.num_tokens * shape.top_k) {
      direct->weights[plan.row()] = __ldcg(shape.weights.row(consumer / shape.top_k) + consumer % shape.top_k);
      direct->tokens[plan.row()] = consumer / shape.top_k;
    }
  }
  if constexpr (!kGateUp) {
    wait_for_kernel_before();
    let_next_kernel_start();
  }
  if constexpr (kGateUp && Kind::kDirect) sync_threads(4, kExpertsConsumers);
  RingPosition at;
  while (true) {
    barrier_wait(ring.full(at.stage), at.use);
    const int index = ring.items[at.stage];
    if (index < 0) break;
    const WorkTile tile = plan.tile(index / params.items_per_tile);
    const int part = index % params.items_per_tile;
    run_item<Kind, kGateUp>(params, tile, part, ring, at, staging, direct, consumer);
    if constexpr (!kGateUp && Kind::kDirect) {
      // Who finishes the last expert's rows of these outputs adds all of them up, in the order that any block would.
      sync_threads(4, kExpertsConsumers);
      if (consumer == 0)
        direct->is_last = count_arrival(params.arrivals + part) + 1 == static_cast<unsigned>(num_tiles);
      sync_threads(4, kExpertsConsumers);
      if (direct->is_last == 0) continue;
      sum_rows(params, plan, part, consumer);
      if (consumer == 0) params.arrivals[part] = 0;
    }
  }
}

template <class Kind, bool kGateUp>
__global__ void __launch_bounds__(Kind::kThreads, Kind::kBlocksPerSm)
    few_rows_kernel(const __grid_constant__ FewParams params) {
#ifdef DI_SM90A
  extern __shared__ __align__(1024) std::byte shared[];
  float* staging = reinterpret_cast<float*>(shared + Kind::kStages * Kind::kStageBytes);
  const uint32_t barriers = shared_address(staging + 2 * Kind::kStagedTokens * kStagedStride);
  const ExpertsRing<Kind> ring{
      shared, barriers, reinterpret_cast<int*>(staging + 2 * Kind::kStagedTokens * kStagedStride) + 4 * Kind::kStages};
  if (threadIdx.x == 0) ring.init();
  if (threadIdx.x == 32) prefetch_map(&params.routed_rows), prefetch_map(&params.shared_rows);
  __syncthreads();
  if (threadIdx.x >= kExpertsConsumers) {
    produce<Kind, kGateUp>(params, ring);
  } else {
    auto* direct =
        reinterpret_cast<DirectRows*>(shared + kSharedBytes<Kind> - (Kind::kDirect ? sizeof(DirectRows) : 0));
    consume<Kind, kGateUp>(params, ring, staging, direct);
  }
#else
  __trap();
#endif
}

}  // namespace deepinfer::cuda
