// RowBlocks: the rows of a sequence as a test wants them: in blocks of any size that lie in any order, of any type.
// Values become those of the type: BF16 rounds, packed types quantise.
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/number_formats.h"
#include "ops/elementwise.h"
#include "ops/rigs.h"
#include "ops/row_table.h"

namespace deepinfer::ops {

class RowBlocks {
 public:
  RowBlocks(RowType type, int32_t block_shift, int64_t width, const std::vector<float>& values) {
    const int64_t rows = static_cast<int64_t>(values.size()) / width;
    const int64_t bytes = row_bytes(type, width);
    const int64_t num_blocks = (rows >> block_shift) + 1;
    // Bytes of rows that do not exist spell NaN where numbers are stored, and the largest values in packed types.
    memory_.assign((num_blocks << block_shift) * bytes, std::byte{0xFF});
    for (int64_t b = 0; b < num_blocks; ++b) blocks_.push_back(memory_.data() + (b << block_shift) * bytes);
    std::reverse(blocks_.begin(), blocks_.end());
    table_ = {blocks_.data(), block_shift, type, width};
    token_blocks_.assign(std::max<int64_t>(rows, kMostTokens), blocks_.data());
    if (type != RowType::kF32 && type != RowType::kBf16) {  // held to the definition by row_table_test.cc
      std::vector<int64_t> positions(rows);
      std::iota(positions.begin(), positions.end(), 0);
      const MatrixView<const float> in = {values.data(), rows, width, width};
      write_rows(*all_rigs().front().stream, {.in = in, .tables = tables(), .positions = positions.data()});
      return;
    }
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < width; ++c) {
        const float value = values[r * width + c];
        const uint16_t half = to_bfloat16(value).bits;
        if (type == RowType::kF32) std::memcpy(table_.row(r) + 4 * c, &value, 4);
        if (type == RowType::kBf16) std::memcpy(table_.row(r) + 2 * c, &half, 2);
      }
    }
  }
  RowBlocks(const RowBlocks&) = delete;
  RowBlocks& operator=(const RowBlocks&) = delete;

  const RowTable& table() const { return table_; }
  // For a step of at most kMostTokens tokens of this sequence, or as many as it has rows.
  static constexpr int64_t kMostTokens = 256;
  RowTables tables() const { return {token_blocks_.data(), table_.block_shift, table_.type, table_.width}; }

 private:
  std::vector<std::byte> memory_;
  std::vector<std::byte*> blocks_;
  std::vector<std::byte* const*> token_blocks_;
  RowTable table_;
};

}  // namespace deepinfer::ops
