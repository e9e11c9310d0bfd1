// Compressor: `ratio` neighbouring tokens become one latent row by a softmax over the tokens, channel by channel.
#pragma once

#include <cstdint>

#include "device/stream.h"
#include "device/view.h"
#include "ops/row_table.h"

namespace deepinfer::ops {

// A token at position p closes a group if p + 1 is divisible by the ratio; the group is then tokens p + 1 - ratio .. p.
//   out[t, c] = sum_i softmax_i(gate[i, c]) * value[i, c] over the tokens i of the group that token t closes
// Rows of other tokens become zero. A token's row in the table holds its `width` values, then its `width` gates, fp32.
struct CompressArgs {
  TensorView out;                      // [num_tokens, width]
  RowTables rows;                      // by position, of 2 * width fp32
  const int64_t* positions = nullptr;  // [num_tokens]; negative: a padding row
  int64_t ratio = 0;
  bool round_to_bf16 = false;
};
void compress(Stream& stream, const CompressArgs& args);

}  // namespace deepinfer::ops
