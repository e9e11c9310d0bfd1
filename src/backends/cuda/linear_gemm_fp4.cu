// The kernels of linear_gemm_kernel.cuh for MXFP4 weights.
#include "backends/cuda/linear_gemm_kernel.cuh"

namespace deepinfer::cuda {

const GemmVariants& gemm_variants_fp4() {
  static constexpr GemmVariants variants = kGemmVariants<WeightFormat::kMxfp4>;
  return variants;
}

}  // namespace deepinfer::cuda
