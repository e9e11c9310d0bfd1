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

CUtensorMap encode(const std::byte* data, int num_dims, const cuuint64_t* dims, const cuuint64_t* strides,
                   const cuuint32_t* box) {
  CUtensorMap map;
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUresult result =
      encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<cuuint32_t>(num_dims), const_cast<std::byte*>(data),
                dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  DI_CHECK(result == CUDA_SUCCESS, "no tensor map of [{}, {}], {} bytes a row at {}: error {}", dims[1], dims[0],
           strides[0], static_cast<const void*>(data), static_cast<int>(result));
  return map;
}
cuuint64_t row_bytes(int64_t rows, int64_t cols, int64_t stride) {
  return static_cast<cuuint64_t>(rows > 1 ? stride : (cols + 7) / 8 * 8) * 2;
}

}  // namespace

CUtensorMap token_map(const std::byte* data, int64_t rows, int64_t cols, int64_t stride, int box_rows) {
  const cuuint64_t dims[2] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {row_bytes(rows, cols, stride)};
  const cuuint32_t box[2] = {kBoxCols, static_cast<cuuint32_t>(box_rows)};
  return encode(data, 2, dims, strides, box);
}

CUtensorMap token_slabs_map(const std::byte* data, int64_t rows, int64_t cols, int64_t stride, int box_rows,
                            int box_tiles) {
  const bool slabs = box_tiles > 1;
  DI_CHECK(!slabs || cols % kBoxCols == 0, "{} columns as slabs of {}", cols, kBoxCols);
  const cuuint64_t bytes = row_bytes(rows, cols, stride);
  const cuuint64_t dims[3] = {static_cast<cuuint64_t>(slabs ? kBoxCols : cols), static_cast<cuuint64_t>(rows),
                              static_cast<cuuint64_t>(slabs ? cols / kBoxCols : 1)};
  const cuuint64_t strides[2] = {bytes, slabs ? kBoxCols * 2 : bytes * dims[1]};
  const cuuint32_t box[3] = {kBoxCols, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(box_tiles)};
  return encode(data, 3, dims, strides, box);
}

}  // namespace deepinfer::cuda
