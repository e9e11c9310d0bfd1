// Compressor: `ratio` neighbouring tokens become one latent row by a softmax over the tokens, channel by channel.
#pragma once

#include <cstdint>
#include <span>

#include "device/stream.h"
#include "device/view.h"
#include "ops/row_table.h"

namespace deepinfer::ops {

// out[g, c] = sum_i softmax_i(gate[i, c]) * value[i, c] over the tokens i of group g. A token's row in the table holds
// its `width` values, then its `width` gates, as fp32.
struct CompressArgs {
  MatrixView<float> out;                    // [num_groups, width]
  std::span<const RowTable* const> tables;  // [num_groups], rows of 2 * width fp32
  std::span<const int64_t> first_rows;      // [num_groups], the group's first token
  int64_t ratio = 0;
  bool round_to_bf16 = false;
};
void compress(Stream& stream, const CompressArgs& args);

}  // namespace deepinfer::ops
