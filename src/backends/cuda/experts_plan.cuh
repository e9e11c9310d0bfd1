// How the tokens of a step are dealt out to the experts of a layer: rows, ordered by expert and token, and the list of
// work that both products take their items from.
//
// A row is one (token, slot): the routed rows come first, those of an expert side by side with ascending tokens, then
// one row a token for the shared expert. A WorkTile is one expert times some of its rows, at most kMost of them.
#pragma once

#include <cstdint>

#include "backends/cuda/cuda_stream.h"
#include "ops/moe.h"

namespace deepinfer::cuda {

// A packed matrix as kernels take it.
struct ExpertMatrix {
  const std::byte* tiles;
  int exponent;  // TileShare's
  float scale;   // of the sums
};
struct alignas(16) ExpertMatrices {
  ExpertMatrix w1, w3, w2;
};

struct alignas(16) WorkTile {
  ExpertMatrices expert;
  int first_row;
  int num_rows;
  int shared;        // whether it is the shared expert
  int expert_index;  // that of the shared one comes after the others
};

// The plan in device memory.
struct ExpertsPlan {
  int* num_tiles;
  WorkTile* tiles;     // the shared expert's first
  int32_t* row_token;  // [rows] tokens of the routed rows
  float* row_weight;   // [rows]
  int32_t* slot_row;   // [num_tokens, top_k] rows of the slots
  int* claims;         // [2] items that were taken beyond the first of every block, of either product
};

struct PlanShape {
  int num_tokens, top_k, num_experts;
  int tile_rows;         // at most so many rows a WorkTile; a multiple of 8
  int shared_tile_rows;  // likewise of the shared expert
  int num_rows() const { return num_tokens * top_k; }
  __host__ __device__ int shared_tiles() const { return (num_tokens + shared_tile_rows - 1) / shared_tile_rows; }
  int most_tiles() const;
};

// Bytes of a plan; and a plan within so many bytes at `memory`, a multiple of 256.
int64_t plan_bytes(const PlanShape& shape);
ExpertsPlan plan_at(std::byte* memory, const PlanShape& shape);

// `experts`: [num_experts + 1] in device memory, the shared one last.
void make_plan(CudaStream& stream, const PlanShape& shape, const ops::ExpertsArgs& args, const ExpertMatrices* experts,
               const ExpertsPlan& plan);

// out[i] = in[row_token[i]] for the routed rows. BF16, dense `out`.
void scatter_tokens(CudaStream& stream, const PlanShape& shape, const ExpertsPlan& plan, const ConstTensorView& in,
                    std::byte* out);

// out[t] = the rows of its slots in order, then + the shared expert's. `rows`: dense, of the type `type`.
void combine_rows(CudaStream& stream, const PlanShape& shape, const ExpertsPlan& plan, const std::byte* rows,
                  ElementType type, const ops::ExpertsArgs& args);

}  // namespace deepinfer::cuda
