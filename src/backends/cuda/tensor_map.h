// Tensor maps: what the bulk copy engine is told of activations in device memory.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace deepinfer::cuda {

// BF16 [rows, cols], rows `stride` values apart, as boxes of 64 columns and `box_rows` rows with 128-byte swizzle; what
// lies beyond the matrix is read as zero. Requires: data and, above one row, rows at multiples of 16 bytes.
CUtensorMap token_map(const std::byte* data, int64_t rows, int64_t cols, int64_t stride, int box_rows);

}  // namespace deepinfer::cuda
