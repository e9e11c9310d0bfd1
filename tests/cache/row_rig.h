// RowRig: a device memory of numbers instead of bytes, to test what the cache promises about contents: the row of a
// position must be what the sequence that reads it would have written itself.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/cache_layout.h"

namespace deepinfer {

// What the row of the last of these tokens holds: it depends on all of them.
inline uint64_t row_value(std::span<const int32_t> tokens, uint64_t salt, int group) {
  uint64_t value = salt * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(group) + 1;
  for (const int32_t token : tokens) value = (value ^ static_cast<uint64_t>(token)) * 0x100000001B3u + 7;
  return value;
}

// Rows of every block of every group.
class RowMemory {
 public:
  RowMemory(const CacheLayout& layout, const std::vector<int32_t>& num_blocks) : layout_(layout) {
    for (size_t g = 0; g < layout.groups.size(); ++g)
      rows_.emplace_back(static_cast<size_t>(num_blocks[g]) * layout.groups[g].tokens_per_block);
  }

  std::span<uint64_t> block(int group, BlockId block) {
    const auto rows = static_cast<size_t>(layout_.groups[group].tokens_per_block);
    return std::span(rows_[group]).subspan(block * rows, rows);
  }
  void copy(int group, BlockId from, BlockId to) {
    const auto source = block(group, from);
    std::copy(source.begin(), source.end(), block(group, to).begin());
  }

  // Writes the rows of positions [begin, tokens.size()).
  void write(const BlockTable& table, std::span<const int32_t> tokens, uint64_t salt, int64_t begin) {
    for (size_t g = 0; g < rows_.size(); ++g)
      for (auto p = begin; p < static_cast<int64_t>(tokens.size()); ++p)
        row(table, g, p) = row_value(tokens.first(p + 1), salt, static_cast<int>(g));
  }
  // Whether the table holds, right, every row that a sequence of these tokens may still read.
  bool holds(const BlockTable& table, std::span<const int32_t> tokens, uint64_t salt) {
    const auto length = static_cast<int64_t>(tokens.size());
    for (size_t g = 0; g < rows_.size(); ++g) {
      const CacheGroup& group = layout_.groups[g];
      for (int64_t p = length > group.retention ? length - group.retention : 0; p < length; ++p) {
        const int64_t number = p / group.tokens_per_block;
        if (number < table.groups[g].first || number >= static_cast<int64_t>(table.groups[g].blocks.size()))
          return false;
        if (row(table, g, p) != row_value(tokens.first(p + 1), salt, static_cast<int>(g))) return false;
      }
    }
    return true;
  }

 private:
  uint64_t& row(const BlockTable& table, size_t group, int64_t position) {
    const int32_t rows = layout_.groups[group].tokens_per_block;
    return block(static_cast<int>(group), table.groups[group].blocks[position / rows])[position % rows];
  }

  CacheLayout layout_;
  std::vector<std::vector<uint64_t>> rows_;
};

}  // namespace deepinfer
