// The tensor-core half of `experts`: the two products of every expert with its rows.
#pragma once

#include "backends/cuda/experts_plan.cuh"

namespace deepinfer::cuda {

// What prepare_experts keeps of a bank.
struct PreparedExperts {
  std::shared_ptr<std::byte> matrices;  // ExpertMatrices [experts + 1] in device memory, the shared one last
  ops::WeightFormat routed_format, shared_format;
  int num_experts = 0;
  int hidden = 0, inner = 0;
  bool tensor_cores = false;  // whether they can multiply every matrix
};

// Which kernels run for so many tokens, and with how large tiles of the plan. A row's bits depend on neither.
struct ExpertsVariant {
  int tile_rows;
  bool gathers;    // rows of tokens are fetched one by one; otherwise from a dense copy
  bool few_items;  // hardly more than there are multiprocessors
};
ExpertsVariant choose_variant(int num_tokens, int top_k, int num_experts);

struct ExpertsMemory {
  std::byte* in_rows;    // [rows, hidden] BF16 unless the variant gathers
  std::byte* activated;  // [rows + tokens, inner] BF16
  std::byte* out_rows;   // [rows + tokens, hidden] BF16
};

// activated = quantise(swiglu(w1 . in, w3 . in) * weight); then out_rows = w2 . activated.
void multiply_gate_up(CudaStream& stream, const ExpertsVariant& variant, const PlanShape& shape,
                      const PreparedExperts& bank, const ops::ExpertsArgs& args, const ExpertsPlan& plan,
                      const ExpertsMemory& memory);
void multiply_down(CudaStream& stream, const ExpertsVariant& variant, const PlanShape& shape,
                   const PreparedExperts& bank, const ExpertsPlan& plan, const ExpertsMemory& memory);

}  // namespace deepinfer::cuda
