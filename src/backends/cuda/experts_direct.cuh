// The plan of so few slots that a warp makes it in its registers: no kernel before the products, and none after them.
#pragma once

#include "backends/cuda/experts_items.cuh"
#include "backends/cuda/values.cuh"

namespace deepinfer::cuda {

struct DirectShape {
  int num_tokens, top_k;  // at most 32 slots
  Rows<const int32_t> experts;
  Rows<const float> weights;
  const ExpertMatrices* matrices;
  int num_experts;
};

// What make_plan would say. Lane i has slot i; every lane of the warp calls.
class DirectPlan {
 public:
  __device__ __forceinline__ DirectPlan(const DirectShape& shape, int tile_rows)
      : shape_(shape), tile_rows_(tile_rows) {
    const int lane = threadIdx.x % 32, slots = shape.num_tokens * shape.top_k;
    expert_ = lane < slots ? __ldcg(shape.experts.row(lane / shape.top_k) + lane % shape.top_k) : kNoExpert;
    const unsigned same = __match_any_sync(0xFFFFFFFFu, expert_);
    count_ = __popc(same);
    const bool is_first = lane < slots && __ffs(same) - 1 == lane;
    tiles_ = is_first ? (count_ + tile_rows - 1) / tile_rows : 0;
    row_ = 0, first_tile_ = num_tiles_ = shared_tiles();
    for (int i = 0; i < slots; ++i) {
      const int other = __shfl_sync(0xFFFFFFFFu, expert_, i), tiles = __shfl_sync(0xFFFFFFFFu, tiles_, i);
      row_ += other < expert_ || (other == expert_ && i < lane);
      first_tile_ += other < expert_ ? tiles : 0;
      num_tiles_ += tiles;
    }
  }
  __device__ __forceinline__ int num_tiles() const { return num_tiles_; }
  // The row of this lane's slot, or that of slot `slot`.
  __device__ __forceinline__ int row() const { return row_; }
  __device__ __forceinline__ int row_of(int slot) const { return __shfl_sync(0xFFFFFFFFu, row_, slot); }

  __device__ __forceinline__ WorkTile tile(int index) const {
    const int slots = shape_.num_tokens * shape_.top_k;
    int expert = shape_.num_experts, first_row = slots, count = shape_.num_tokens, tiles = shared_tiles(), i = index;
    if (index >= tiles) {
      const unsigned has =
          __ballot_sync(0xFFFFFFFFu, tiles_ > 0 && index >= first_tile_ && index < first_tile_ + tiles_);
      const int lane = __ffs(has) - 1;
      expert = __shfl_sync(0xFFFFFFFFu, expert_, lane), first_row = row_of(lane);
      count = __shfl_sync(0xFFFFFFFFu, count_, lane), tiles = __shfl_sync(0xFFFFFFFFu, tiles_, lane);
      i = index - __shfl_sync(0xFFFFFFFFu, first_tile_, lane);
    }
    const int rows = even_rows(count, tiles);
    WorkTile result = {
        {}, first_row + i * rows, max(min(rows, count - i * rows), 0), expert == shape_.num_experts, expert};
    load_matrices(result.expert, shape_.matrices + expert);
    return result;
  }

 private:
  static constexpr int kNoExpert = 0x7FFFFFFF;
  __device__ __forceinline__ int shared_tiles() const { return (shape_.num_tokens + tile_rows_ - 1) / tile_rows_; }

  const DirectShape& shape_;
  int tile_rows_;
  int expert_, row_;                // of this lane's slot
  int count_, tiles_, first_tile_;  // of its expert; no tiles but in the first slot of an expert
  int num_tiles_;
};

}  // namespace deepinfer::cuda
