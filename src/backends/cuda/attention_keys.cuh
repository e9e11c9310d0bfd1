// Which keys a query reads and where their rows lie: the list of ops/attention.h, on the device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/attention.h"
#include "ops/row_table.h"

namespace deepinfer::cuda {

inline constexpr int kKeysPerBlock = 64;
inline constexpr float kNoScore = -1e30f;  // the running maximum before the first block

// AttentionArgs without what only the host asks.
struct AttentionParams {
  std::byte* out;
  const std::byte* q;
  int64_t out_stride, q_stride;  // in elements
  const int64_t* positions;
  ops::RowTables window, compressed;
  int64_t window_size;
  const int64_t* first_window_row;
  const int32_t* selected;
  int64_t selected_stride;
  const int32_t* num_selected;
  const float* sink;
  const float *cosine, *sine;
  int64_t cosine_stride, sine_stride;
  int64_t window_row_bytes, compressed_row_bytes;
  int num_tokens, num_heads, head_dim, num_pairs, num_selectable;
  bool round_to_bf16;
};

inline AttentionParams params_of(const ops::AttentionArgs& a) {
  AttentionParams p = {};
  p.out = a.out.data;
  p.q = a.q.data;
  p.out_stride = a.out.stride;
  p.q_stride = a.q.stride;
  p.positions = a.positions;
  p.window = a.window;
  p.compressed = a.compressed;
  p.window_size = a.window_size;
  p.first_window_row = a.first_window_row;
  p.selected = a.selected.data;
  p.selected_stride = a.selected.stride;
  p.num_selected = a.num_selected;
  p.sink = a.sink;
  p.cosine = a.cosine.data;
  p.sine = a.sine.data;
  p.cosine_stride = a.cosine.stride;
  p.sine_stride = a.sine.stride;
  p.num_tokens = static_cast<int>(a.q.rows);
  p.num_heads = static_cast<int>(a.num_heads);
  p.head_dim = static_cast<int>(a.q.cols / a.num_heads);
  p.num_selectable = static_cast<int>(a.selected.cols);
  p.num_pairs = a.cosine.data == nullptr ? 0 : static_cast<int>(a.cosine.cols);
  p.window_row_bytes = ops::row_bytes(p.window.type, p.head_dim);
  p.compressed_row_bytes = ops::row_bytes(p.compressed.type, p.head_dim);
  p.round_to_bf16 = a.round_to_bf16;
  return p;
}

struct KeyList {
  int64_t first_window_row = 0;
  int num_window = 0;
  int num_keys = 0;  // 0: a padding row
};

// `first`: the token's first_window_row. Requires: position >= 0.
__device__ inline KeyList make_key_list(int64_t position, int64_t first, int num_selected, int64_t window_size) {
  KeyList list;
  list.first_window_row = max(max(position + 1 - window_size, int64_t{0}), first > position ? int64_t{0} : first);
  list.num_window = static_cast<int>(position + 1 - list.first_window_row);
  list.num_keys = list.num_window + num_selected;
  return list;
}
__device__ inline KeyList key_list(const AttentionParams& p, int token) {
  const int64_t position = p.positions[token];
  const int64_t first = p.first_window_row == nullptr ? 0 : p.first_window_row[token];
  const int num_selected = p.compressed.blocks == nullptr ? 0 : p.num_selected[token];
  return position < 0 ? KeyList() : make_key_list(position, first, num_selected, p.window_size);
}

// `bytes` of a row.
__device__ inline const std::byte* row_address(const ops::RowTables& tables, int token, int64_t row, int64_t bytes) {
  const std::byte* block = tables.blocks[token][row >> tables.block_shift];
  return block + tables.offset + (row & ((int64_t{1} << tables.block_shift) - 1)) * bytes;
}

// Requires: i < list.num_keys.
__device__ inline const std::byte* key_address(const AttentionParams& p, const KeyList& list, int token, int i) {
  if (i < list.num_window) return row_address(p.window, token, list.first_window_row + i, p.window_row_bytes);
  const int32_t row = p.selected[token * p.selected_stride + (i - list.num_window)];
  return row_address(p.compressed, token, row, p.compressed_row_bytes);
}

}  // namespace deepinfer::cuda
