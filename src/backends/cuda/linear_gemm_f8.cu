// The kernels of linear_gemm_kernel.cuh for E4M3 weights with a scale a 32x32 tile.
#include "backends/cuda/linear_gemm_kernel.cuh"

namespace deepinfer::cuda {

const GemmVariants& gemm_variants_f8() {
  static constexpr GemmVariants variants = kGemmVariants<WeightFormat::kF8Tile32>;
  return variants;
}

}  // namespace deepinfer::cuda
