// RowTable: the rows of one sequence in one kind of cache, in blocks of equal size that need not be neighbours.
//
// Row r lies in blocks[r >> block_shift]. Blocks that no live row uses may be null. The table owns nothing; cache code
// decides which block is where, ops only follow it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deepinfer::ops {

enum class RowType : uint8_t { kF32, kBf16 };

struct RowTable {
  std::byte* const* blocks = nullptr;
  int32_t block_shift = 0;  // rows in a block = 1 << block_shift
  RowType type = RowType::kF32;
  int64_t width = 0;  // values in a row

  std::byte* row(int64_t r) const {
    const int64_t row_bytes = width * (type == RowType::kF32 ? 4 : 2);
    return blocks[r >> block_shift] + (r & ((int64_t{1} << block_shift) - 1)) * row_bytes;
  }
};

}  // namespace deepinfer::ops
