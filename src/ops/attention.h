// Sparse attention with one latent vector a position that is key and value of all heads, and a sink a head.
//
// The query of a token at position p reads the window rows [max(0, p + 1 - window_size, first_window_row), p] and then
// the selected compressed rows, in this order, in blocks of 64 keys with a running maximum. The order is a function of
// the query alone.
//   s_k = (q . k) / sqrt(head_dim);  out = sum_k w_k k / (sum_k w_k + exp(sink - max)),  w_k = exp(s_k - max)
// With angles, q is rotated before (ops/elementwise.h, rope) and the result rotated back.
#pragma once

#include <cstdint>

#include "device/stream.h"
#include "device/view.h"
#include "ops/row_table.h"

namespace deepinfer::ops {

struct AttentionArgs {
  TensorView out;                               // [num_tokens, num_heads * head_dim]
  ConstTensorView q;                            // [num_tokens, num_heads * head_dim]
  const int64_t* positions = nullptr;           // [num_tokens]; negative: a padding row, out is undefined
  RowTables window;                             // rows by position
  int64_t window_size = 0;                      // rows a query sees, its own included
  const int64_t* first_window_row = nullptr;    // [num_tokens], or null for 0; above the position: 0
  RowTables compressed;                         // blocks null: no compressed rows
  MatrixView<const int32_t> selected;           // [num_tokens, top_k], each row's first num_selected ascending
  const int32_t* num_selected = nullptr;        // [num_tokens]
  const float* sink = nullptr;                  // [num_heads]
  int64_t num_heads = 0;
  MatrixView<const float> cosine;  // [num_tokens, num_pairs]; data null: no rotation
  MatrixView<const float> sine;
  bool round_to_bf16 = false;  // weights of the sum, the result, and q and the result after their rotation
};
void attention(Stream& stream, const AttentionArgs& args);

}  // namespace deepinfer::ops
