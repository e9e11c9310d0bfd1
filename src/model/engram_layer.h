// Engram: hashes the last tokens to rows of the layer's n-gram table, projects them and adds them to the streams.
//
// The rows depend on token ids alone. They are asked for when a step begins, taken from the table on the host when
// their layer is reached (or before a step that is launched as a whole), and decoded on the device.
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
  // Copies the step's rows of a table to host memory. Fails if one is damaged.
  Status gather(int table, const EngramWeights& weights, StepInputs::EngramCodes out) const;

 private:
  EngramLookup(EngramHash hash, std::vector<int32_t> token_map)
      : hash_(std::move(hash)), token_map_(std::move(token_map)) {}

  EngramHash hash_;
  std::vector<int32_t> token_map_;
  std::vector<int32_t> compressed_, window_;
  std::vector<std::vector<int64_t>> rows_;  // [tables][num_tokens * num_columns]
};

// streams: [num_tokens, h * hidden], in place. rows: the gathered ones, in device memory.
void engram_layer(ForwardContext& context, const EngramWeights& weights, StepInputs::EngramCodes rows,
                  TensorView streams);

}  // namespace deepinfer
