// What a kernel for few rows knows of its items, and the warp that fetches them: weights and rows, stage by stage.
#pragma once

#include <type_traits>

#include "backends/cuda/experts_direct.cuh"
#include "backends/cuda/experts_epilogue.cuh"
#include "backends/cuda/experts_items.cuh"
#include "backends/cuda/experts_mainloop.cuh"
#include "backends/cuda/launch.cuh"

namespace deepinfer::cuda {

// Rows of the input as boxes of an item's rows and `tiles` column tiles: those of a stage, or one.
struct RowBoxes {
  CUtensorMap map;
  int tiles;
};

struct FewParams : ItemParams {
  RowBoxes routed_rows, shared_rows;
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

// Of the warpgroups; null: no rows.
struct ItemMatrices {
  const std::byte* tiles[2];
};
template <class Kind, bool kGateUp>
__device__ __forceinline__ ItemMatrices matrices_of(const WorkTile& tile, int part, int row_tiles,
                                                    int64_t row_tile_bytes) {
  ItemMatrices m = {};
#pragma unroll
  for (int g = 0; g < Kind::kGroups; ++g) {
    const ExpertMatrix& matrix = !kGateUp ? tile.expert.w2 : g == 0 ? tile.expert.w1 : tile.expert.w3;
    const int row_tile = kGateUp ? part : Kind::kGroups * part + g;
    m.tiles[g] = row_tile < row_tiles ? matrix.tiles + row_tile * row_tile_bytes : nullptr;
  }
  return m;
}

// What the producer knows of an item.
template <class Kind, bool kGateUp>
struct Source {
  ItemMatrices matrices;
  const CUtensorMap* map;
  Item item;
  int n, stage_tiles, box_tiles, bytes_of_tile, groups;
  int first_row;  // of the map

  __device__ __forceinline__ Source(const FewParams& params, const PlanOf<Kind>& plan, int index) {
    const WorkTile tile = plan.tile(index / params.items_per_tile);
    const WeightFormat format = tile.shared ? params.shared_format : params.routed_format;
    const ExpertMatrix &first = kGateUp ? tile.expert.w1 : tile.expert.w2,
                       &second = kGateUp ? tile.expert.w3 : tile.expert.w2;
    item = {
        index % params.items_per_tile, tile.first_row, tile.num_rows, tile.shared, {first.exponent, second.exponent},
        {first.scale, second.scale}};
    n = width<Kind>(format), stage_tiles = cuda::stage_tiles<Kind>(format);
    bytes_of_tile = tile_bytes(format);
    matrices =
        matrices_of<Kind, kGateUp>(tile, item.part, params.row_tiles, int64_t{params.num_k_tiles} * bytes_of_tile);
    groups = (matrices.tiles[0] != nullptr) + (matrices.tiles[1] != nullptr);
    const RowBoxes& boxes = tile.shared ? params.shared_rows : params.routed_rows;
    box_tiles = boxes.tiles, map = &boxes.map;
    first_row = params.all_tokens ? 0 : tile.first_row - (tile.shared ? params.shared_first : 0);
  }
  // By one lane.
  __device__ __forceinline__ void copy_weights(uint32_t stage, uint32_t barrier, int k, int count,
                                               uint64_t policy) const {
    barrier_expect(barrier, max(box_tiles, count) * n * 128 + count * groups * bytes_of_tile);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      if (matrices.tiles[g] == nullptr) continue;
      copy_bulk(stage + stage_tiles * (n * 128 + g * bytes_of_tile),
                matrices.tiles[g] + static_cast<int64_t>(k) * bytes_of_tile, count * bytes_of_tile, barrier, policy);
    }
  }
  __device__ __forceinline__ void copy_rows(uint32_t stage, uint32_t barrier, int k, int count, uint64_t policy) const {
    if (box_tiles > 1) return copy_box(stage, map, 0, first_row, k, barrier, policy);
    for (int j = 0; j < count; ++j) {
      copy_box(stage + j * n * 128, map, (k + j) * kTileCols, first_row, 0, barrier, policy);
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

// All stages of this block's items, in order. One warp. A block takes another item when it has fetched one, because the
// blocks of a multiprocessor run at different speeds; without a plan in memory items are dealt out beforehand. In the
// second product the weights of the first item's first stages are fetched before the first product is complete: the
// plan is, or this kernel would not have started.
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
        if (k == 0) ring.items[0] = source.item;
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
          if (k == 0) ring.items[at.stage] = source.item;
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
    ring.items[at.stage].part = -1;
    barrier_arrive(ring.full(at.stage));
  }
}

}  // namespace deepinfer::cuda
