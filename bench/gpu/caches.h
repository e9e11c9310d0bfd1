// Caches full of random rows: a number of sequences of one length, each with window rows, compressed rows and index
// keys of both ratios, and rows of an open group, in blocks of 64 rows as an engine would hold them.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu/card.h"
#include "ops/row_table.h"

namespace deepinfer::bench {

// The rows of one kind for all sequences. A block table a sequence; blocks before `first_row` are absent.
class RowPool {
 public:
  RowPool() = default;
  // token_sequence: of each token of a step, the sequence it belongs to.
  RowPool(Card& card, ops::RowType type, int64_t width, int64_t num_sequences, int64_t first_row, int64_t end_row,
          cuda::RandomKind kind, const std::vector<int32_t>& token_sequence);
  ops::RowTables tables() const { return {per_token_.data(), kBlockShift, type_, width_, 0}; }

 private:
  static constexpr int32_t kBlockShift = 6;

  ops::RowType type_ = ops::RowType::kF32;
  int64_t width_ = 0;
  DeviceValues<std::byte> rows_;
  DeviceValues<std::byte*> blocks_;
  DeviceValues<std::byte* const*> per_token_;
};

struct Caches {
  int64_t context = 0;                                   // tokens of every sequence, those of the step included
  DeviceValues<int64_t> positions;                       // of the step's tokens
  DeviceValues<float> cosine, sine;                      // [tokens, 32]
  RowPool window, open_group, latent[2], index_keys[2];  // by ratio - 1

  // A token a sequence, the last of `context`.
  static Caches for_decode(Card& card, int64_t num_sequences, int64_t context);
  // One sequence whose tokens are all in the step.
  static Caches for_prefill(Card& card, int64_t num_tokens);

 private:
  static Caches make(Card& card, int64_t num_sequences, int64_t context, int64_t first_window_row,
                     const std::vector<int64_t>& positions, const std::vector<int32_t>& token_sequence);
};

}  // namespace deepinfer::bench
