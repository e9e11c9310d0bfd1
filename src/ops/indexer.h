// Indexer: which compressed rows a query attends to.
//   score(g) = sum_h relu(q_h . k_g) * weight_h
// Selection keeps the best `top_k` rows, the lower row winning a tie, listed in ascending order. A candidate source
// also keeps the best blocks of rows; later layers select among the rows of those blocks only.
#pragma once

#include <cstdint>
#include <span>

#include "device/stream.h"
#include "device/view.h"
#include "ops/row_table.h"

namespace deepinfer::ops {

struct IndexQuery {
  const RowTable* keys = nullptr;  // rows of head_dim values
  int64_t num_visible = 0;         // rows [0, num_visible) exist for this query
};

struct IndexSelectArgs {
  MatrixView<int32_t> selected;          // [num_queries, top_k]
  std::span<int32_t> num_selected;       // [num_queries]
  MatrixView<const float> q;             // [num_queries, num_heads * head_dim]
  MatrixView<const float> head_weights;  // [num_queries, num_heads], scaled already
  std::span<const IndexQuery> queries;   // [num_queries]
  int64_t num_heads = 0;
  int64_t top_k = 0;

  // Candidates: blocks of `candidate_block` rows. block_score = best score in the block over visible rows, and the
  // block of the newest visible row is always kept. candidate_block == 0: no candidates.
  int64_t candidate_block = 0;
  bool build_candidates = false;      // false with candidate_block > 0: restrict to the given blocks
  MatrixView<int32_t> candidates;     // [num_queries, max blocks], ascending block numbers
  std::span<int32_t> num_candidates;  // [num_queries]
};
void index_select(Stream& stream, const IndexSelectArgs& args);

}  // namespace deepinfer::ops
