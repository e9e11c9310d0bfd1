// What kernels for few and for many rows an expert share: how items are taken, what of a plan they read, and the
// activation.
#pragma once

#include "backends/cuda/experts_plan.cuh"
#include "backends/cuda/values.cuh"

namespace deepinfer::cuda {

// The item that taker `taker` of `takers` takes in round `round`: back and forth, so that who got the longer items
// first gets the last ones last.
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
