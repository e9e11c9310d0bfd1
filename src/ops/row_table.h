// RowTable: the rows of one sequence in one kind of cache, in blocks of equal size that need not be neighbours.
//
// Row r lies in blocks[r >> block_shift], `offset` bytes from the block's start and on (a block may hold rows of many
// kinds). Blocks that no live row uses may be null. The table owns nothing; cache code decides which block is where,
// ops only follow it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deepinfer::ops {

// How a row is stored. The packed types hold exactly what the quantiser of the same name gives (ops::FakeQuant): first
// the codes of all values, then the scales of the groups; value = code * scale in fp32. Of two E2M1 codes in a byte the
// lower nibble comes first. The width is a multiple of the group.
enum class RowType : uint8_t {
  kF32,
  kBf16,
  kE4m3Group32,  // E4M3 codes, an E8M0 scale for 32
  kE2m1Group16,  // E2M1 codes, an E4M3 scale for 16
  kE2m1Group32,  // E2M1 codes, an E8M0 scale for 32
};

// Values that share a scale; 1: none do.
inline int64_t row_group(RowType type) {
  if (type == RowType::kF32 || type == RowType::kBf16) return 1;
  return type == RowType::kE2m1Group16 ? 16 : 32;
}

inline int64_t row_bytes(RowType type, int64_t width) {
  if (type == RowType::kF32) return width * 4;
  if (type == RowType::kBf16) return width * 2;
  const int64_t codes = type == RowType::kE4m3Group32 ? width : width / 2;
  return codes + width / row_group(type);
}

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

// The rows of one kind for every token of a step: tokens of the same sequence share a block table. Device memory.
struct RowTables {
  std::byte* const* const* blocks = nullptr;  // [num_tokens]: the table of the token's sequence; null: a padding row
  int32_t block_shift = 0;
  RowType type = RowType::kF32;
  int64_t width = 0;
  int64_t offset = 0;

  RowTable of(int64_t token) const { return {blocks[token], block_shift, type, width, offset}; }
};

}  // namespace deepinfer::ops
