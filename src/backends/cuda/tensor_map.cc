#include "backends/cuda/tensor_map.h"

#include <cudaTypedefs.h>

#include "backends/cuda/cuda_check.h"

namespace deepinfer::cuda {
namespace {

constexpr int kBoxCols = 64;

PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  static const auto found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    DI_CUDA_CHECK(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result));
    DI_CHECK(result == cudaDriverEntryPointSuccess, "the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }();
  return found;
}

}  // namespace

CUtensorMap token_map(const std::byte* data, int64_t rows, int64_t cols, int64_t stride, int box_rows) {
  CUtensorMap map;
  const cuuint64_t dims[2] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(rows > 1 ? stride : (cols + 7) / 8 * 8) * 2};
  const cuuint32_t box[2] = {kBoxCols, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  const CUresult result = encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<std::byte*>(data), dims,
                                    strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                    CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  DI_CHECK(result == CUDA_SUCCESS, "no tensor map of [{}, {}], stride {} at {}: error {}", rows, cols, stride,
           static_cast<const void*>(data), static_cast<int>(result));
  return map;
}

}  // namespace deepinfer::cuda
