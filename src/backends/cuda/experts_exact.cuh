// The half of `experts` that multiplies in fp32, in the order that ops/linear.h gives: any activations, any weights.
#pragma once

#include "backends/cuda/experts_plan.cuh"

namespace deepinfer::cuda {

// The matrices of the bank as the exact kernels read them, [experts + 1] of w1, w3 and w2 each, the shared one last.
struct ExactMatrix {
  const std::byte* data;
  ops::WeightFormat format;
};
struct ExactMatrices {
  ExactMatrix w1, w3, w2;
};

// A plan's tiles must have at most so many rows.
inline constexpr int kExactTileRows = 16;

// `activated` [rows + tokens, inner] and `out_rows` [rows + tokens, hidden]: fp32, dense.
void exact_experts(CudaStream& stream, const PlanShape& shape, const ExactMatrices* matrices,
                   const ops::ExpertsArgs& args, const ExpertsPlan& plan, float* activated, float* out_rows);

}  // namespace deepinfer::cuda
