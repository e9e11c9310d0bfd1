// RowTable: the rows of one sequence in one kind of cache, in blocks of equal size that need not be neighbours.
//
// Row r lies in blocks[r >> block_shift], `offset` bytes from the block's start and on (a block may hold rows of many
// kinds). Blocks that no live row uses may be null. The table owns nothing; cache code decides which block is where, ops
// only follow it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deepinfer::ops {

enum class RowType : uint8_t { kF32, kBf16 };

inline int64_t row_bytes(RowType type, int64_t width) { return width * (type == RowType::kF32 ? 4 : 2); }

struct RowTable {
  std::byte* const* blocks = nullptr;
  int32_t block_shift = 0;  // rows in a block = 1 << block_shift
  RowType type = RowType::kF32;
  int64_t width = 0;   // values in a row
  int64_t offset = 0;  // bytes

  std::byte* row(int64_t r) const {
    return blocks[r >> block_shift] + offset + (r & ((int64_t{1} << block_shift) - 1)) * row_bytes(type, width);
  }
};

}  // namespace deepinfer::ops
