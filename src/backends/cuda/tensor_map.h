// Tensor maps: what the bulk copy engine is told of activations in device memory.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace deepinfer::cuda {

// BF16 [rows, cols], rows `stride` values apart, as boxes of 64 columns and `box_rows` rows with 128-byte swizzle; what
// lies beyond the matrix is read as zero. Requires: data and, above one row, rows at multiples of 16 bytes.
CUtensorMap token_map(const std::byte* data, int64_t rows, int64_t cols, int64_t stride, int box_rows);

// The same in three dimensions: boxes of `box_tiles` times 64 columns, one [box_rows, 64] after the other. One column
// tile a box: coordinates are column, row, 0; more: 0, row, column / 64. Requires: columns at a multiple of 64, if
// more.
CUtensorMap token_slabs_map(const std::byte* data, int64_t rows, int64_t cols, int64_t stride, int box_rows,
                            int box_tiles);

}  // namespace deepinfer::cuda
