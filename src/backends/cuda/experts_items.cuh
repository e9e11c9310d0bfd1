// What kernels for few and for many rows an expert share: how items are taken, what of a plan they read, and the
// activation.
#pragma once

#include "backends/cuda/experts_gemm.cuh"
#include "backends/cuda/values.cuh"
#include "backends/cuda/weight_tiles.cuh"

namespace deepinfer::cuda {

// What a kernel knows of its items: tiles of the plan times parts of a matrix.
struct ItemParams {
  const int* num_tiles;
  const WorkTile* tiles;
  int* claims;                        // items that were taken beyond the first of every block; not of a direct kernel
  const float* row_weight = nullptr;  // null: w2
  int shared_first = 0;               // the row of the plan that is the shared expert's first row of the input
  WeightFormat routed_format, shared_format;
  int num_k_tiles;
  int row_tiles;  // of 64, of a matrix
  int items_per_tile;
  float limit = 0;
  bool quantise = false;
};

inline void set_product(ItemParams& p, const PreparedExperts& bank, const ExpertsPlan& plan, int rows, int cols) {
  p.num_tiles = plan.num_tiles;
  p.tiles = plan.tiles;
  p.claims = plan.claims + (rows == bank.inner ? 0 : 1);
  p.routed_format = bank.routed_format;
  p.shared_format = bank.shared_format;
  p.num_k_tiles = (cols + kTileCols - 1) / kTileCols;
  p.row_tiles = (rows + kTileRows - 1) / kTileRows;
}
// Of w1 and w3.
inline void set_activation(ItemParams& p, const PlanShape& shape, const ExpertsPlan& plan,
                           const ops::ExpertsArgs& args) {
  p.row_weight = plan.row_weight;
  p.shared_first = shape.num_rows();
  p.limit = args.swiglu_limit;
  p.quantise = args.quantise;
}

// Where items are dealt out beforehand: the item that taker `taker` of `takers` takes in round `round`: back and forth,
// so that who got the longer items first gets the last ones last.
__device__ __forceinline__ int item_of(int round, int taker, int takers) {
  return round * takers + (round % 2 == 0 ? taker : takers - 1 - taker);
}

__device__ __forceinline__ WorkTile load_tile(const WorkTile* tile) {
  WorkTile result;
  auto* to = reinterpret_cast<uint4*>(&result);
  const auto* from = reinterpret_cast<const uint4*>(tile);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(WorkTile) / 16); ++i) to[i] = __ldcg(from + i);
  return result;
}

__device__ __forceinline__ void load_matrices(ExpertMatrices& to, const ExpertMatrices* from) {
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(ExpertMatrices) / 16); ++i) {
    reinterpret_cast<uint4*>(&to)[i] = __ldg(reinterpret_cast<const uint4*>(from) + i);
  }
}

// Rows a tile if an expert's rows are spread evenly over as few tiles as there can be.
__device__ __forceinline__ int even_rows(int count, int tiles) { return ((count + tiles - 1) / tiles + 7) / 8 * 8; }

// gate * sigmoid(gate) * up * weight as ops::swiglu does it, of rounded products.
__device__ __forceinline__ float activate(float gate, float up, float weight, float limit) {
  const float x = gate < limit ? gate : limit;
  const float y = fminf(fmaxf(up, -limit), limit);
  const float sigmoid = 1.0f / (1.0f + expf(-x));
  return round_bf16(x * sigmoid * y * weight);
}

}  // namespace deepinfer::cuda
