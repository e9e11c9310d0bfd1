// Sparse attention with one latent vector a position that is key and value of all heads, and a sink a head.
//
// A query reads the window rows [window_begin, window_end) and then the selected compressed rows, in this order, in
// blocks of 64 keys with a running maximum. The order is a function of the query alone.
//   s_k = (q . k) / sqrt(head_dim);  out = sum_k w_k k / (sum_k w_k + exp(sink - max)),  w_k = exp(s_k - max)
#pragma once

#include <cstdint>
#include <span>

#include "device/stream.h"
#include "device/view.h"
#include "ops/row_table.h"

namespace deepinfer::ops {

struct AttentionQuery {
  const RowTable* window = nullptr;
  int64_t window_begin = 0;
  int64_t window_end = 0;
  const RowTable* compressed = nullptr;  // may be null when num_selected == 0
  const int32_t* selected = nullptr;     // ascending row numbers
  int64_t num_selected = 0;
};

struct AttentionArgs {
  MatrixView<float> out;                    // [num_queries, num_heads * head_dim]
  MatrixView<const float> q;                // [num_queries, num_heads * head_dim]
  std::span<const AttentionQuery> queries;  // [num_queries]
  const float* sink = nullptr;              // [num_heads]
  int64_t num_heads = 0;
  bool round_to_bf16 = false;  // weights of the sum and the result, as the model does
};
void attention(Stream& stream, const AttentionArgs& args);

}  // namespace deepinfer::ops
