// The kernels of linear_gemm_kernel.cuh for BF16 weights.
#include "backends/cuda/linear_gemm_kernel.cuh"

namespace deepinfer::cuda {

const GemmVariants& gemm_variants_bf16() {
  static constexpr GemmVariants variants = kGemmVariants<WeightFormat::kBf16>;
  return variants;
}

}  // namespace deepinfer::cuda
