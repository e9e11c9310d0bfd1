// Engram: hashes the last tokens to rows of the layer's n-gram table, projects them and adds them to the streams.
//
// The rows depend on token ids alone, so they are asked for when a step begins and taken when its layer is reached.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/status.h"
#include "model/engram_hash.h"
#include "model/forward_context.h"
#include "model/weights.h"

namespace deepinfer {

class EngramLookup {
 public:
  // token_map: compressed id of each token id.
  static Result<EngramLookup> create(const EngramConfig& config, std::vector<int32_t> token_map);

  // The compressed ids of `tokens`, valid until the next call.
  std::span<const int32_t> compress(std::span<const int32_t> tokens);
  // Computes the rows of all tables for the step (whose ids the states hold already) and starts fetching them.
  void begin_step(const StepLayout& layout, const std::vector<LayerWeights>& layers, const LayerPlan& plan);
  // streams: [num_tokens, h * hidden], in place. Fails if a row of the table is damaged.
  Status apply(ForwardContext& context, int table, const EngramWeights& weights, MatrixView<float> streams) const;

 private:
  EngramLookup(EngramHash hash, std::vector<int32_t> token_map)
      : hash_(std::move(hash)), token_map_(std::move(token_map)) {}

  EngramHash hash_;
  std::vector<int32_t> token_map_;
  std::vector<int32_t> compressed_, window_;
  std::vector<std::vector<int64_t>> rows_;  // [tables][num_tokens * num_columns]
};

}  // namespace deepinfer
