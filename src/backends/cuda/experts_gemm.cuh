// The tensor-core half of `experts`: the two products of every expert with its rows.
#pragma once

#include "backends/cuda/experts_plan.cuh"

namespace deepinfer::cuda {

// What prepare_experts keeps of a bank.
struct PreparedExperts {
  std::shared_ptr<std::byte> matrices;  // ExpertMatrices [experts + 1] in device memory, the shared one last
  // [items of w2] zeros: counts of a kernel for few rows, which leaves zeros. One stream at a time uses a bank.
  std::shared_ptr<std::byte> arrivals;
  ops::WeightFormat routed_format, shared_format;
  int num_experts = 0;
  int hidden = 0, inner = 0;
  bool tensor_cores = false;  // whether they can multiply every matrix
};

// Which kernels run for so many tokens, and with how large tiles of the plan. A row's bits depend on neither.
enum class ExpertsKernel { kDirect, kFew8, kFew16, kMany };
struct ExpertsVariant {
  int tile_rows, shared_tile_rows;
  ExpertsKernel kernel;
  bool all_tokens = false;  // every item of w1 and w3 multiplies all tokens: no copies of them are needed
  bool is_many() const { return kernel == ExpertsKernel::kMany; }
  // Without make_plan, and with the sum of a token's rows.
  bool is_direct() const { return kernel == ExpertsKernel::kDirect; }
};
ExpertsVariant choose_variant(int num_tokens, int top_k, const PreparedExperts& bank);

struct ExpertsMemory {
  std::byte* in_rows;    // [rows, hidden] BF16, for many rows
  std::byte* activated;  // [rows + tokens, inner] BF16
  std::byte* out_rows;   // [rows + tokens, hidden] BF16
};

// activated = quantise(swiglu(w1 . in, w3 . in) * weight); then out_rows = w2 . activated.
void multiply_gate_up(CudaStream& stream, const ExpertsVariant& variant, const PlanShape& shape,
                      const PreparedExperts& bank, const ops::ExpertsArgs& args, const ExpertsPlan& plan,
                      const ExpertsMemory& memory);
void multiply_down(CudaStream& stream, const ExpertsVariant& variant, const PlanShape& shape,
                   const PreparedExperts& bank, const ops::ExpertsArgs& args, const ExpertsPlan& plan,
                   const ExpertsMemory& memory);

// Their halves for many rows; and the most rows that an item then has.
void multiply_gate_up_many(CudaStream& stream, const PlanShape& shape, const PreparedExperts& bank,
                           const ops::ExpertsArgs& args, const ExpertsPlan& plan, const ExpertsMemory& memory);
void multiply_down_many(CudaStream& stream, const PlanShape& shape, const PreparedExperts& bank,
                        const ExpertsPlan& plan, const ExpertsMemory& memory);
int most_rows_of_item(ops::WeightFormat format);

}  // namespace deepinfer::cuda
