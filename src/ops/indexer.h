// Indexer: which compressed rows a query attends to.
//   score(g) = sum_h relu(q_h . k_g) * weight_h
// The query of a token at position p sees rows [0, (p + 1) / ratio). Selection keeps the best `top_k`, the lower row
// winning a tie, listed in ascending order. A candidate source also keeps the best blocks of rows; later layers select
// among the rows of those blocks only.
#pragma once

#include <cstdint>

#include "device/stream.h"
#include "device/view.h"
#include "ops/row_table.h"

namespace deepinfer::ops {

struct IndexSelectArgs {
  MatrixView<int32_t> selected;          // [num_tokens, top_k]
  int32_t* num_selected = nullptr;       // [num_tokens]
  ConstTensorView q;                     // [num_tokens, num_heads * head_dim]
  ConstTensorView head_weights;          // [num_tokens, num_heads], scaled already
  RowTables keys;                        // rows of head_dim values
  const int64_t* positions = nullptr;    // [num_tokens]; negative: a padding row, which selects nothing
  int64_t ratio = 1;
  int64_t max_visible = 0;               // no token of the step sees more rows
  int64_t num_heads = 0;
  int64_t top_k = 0;

  // Candidates: blocks of `candidate_block` rows. block_score = best score in the block over visible rows, and the
  // block of the newest visible row is always kept. candidate_block == 0: no candidates.
  int64_t candidate_block = 0;
  bool build_candidates = false;       // false with candidate_block > 0: restrict to the given blocks
  MatrixView<int32_t> candidates;      // [num_tokens, max blocks], ascending block numbers
  int32_t* num_candidates = nullptr;   // [num_tokens]
};
void index_select(Stream& stream, const IndexSelectArgs& args);

}  // namespace deepinfer::ops
