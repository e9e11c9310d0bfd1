// Model: a loaded checkpoint and its forward pass over any mix of sequences.
//
// Results of a sequence are a function of its tokens alone: not of how they were cut into steps, nor of the other
// sequences of a step, nor of the number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "device/stream.h"
#include "model/engram_layer.h"
#include "model/forward_context.h"
#include "model/numerics.h"
#include "model/sequence_state.h"
#include "model/step.h"
#include "model/weights.h"

namespace deepinfer {

struct ModelOptions {
  Numerics numerics = Numerics::kOfficial;
  KvFormat kv_format = KvFormat::kBf16;
  int64_t engram_cache_rows = int64_t{1} << 16;  // of each table
  LoadProgress progress;
};

class Model {
 public:
  // token_map: compressed Engram id of every token id; may be empty for a model without Engram. The checkpoint moves
  // in.
  static Result<std::unique_ptr<Model>> load(Device& device, Checkpoint checkpoint, ModelConfig config,
                                             std::vector<int32_t> token_map, const ModelOptions& options);

  const ModelConfig& config() const { return config_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  Numerics numerics() const { return numerics_; }

  const LayerPlan& plan() const { return plan_; }
  const KvLayout& kv_layout() const { return *kv_layout_; }

  // A sequence with memory of its own, and one whose blocks a cache places.
  SequenceState make_sequence(int64_t max_rollback = 0) const {
    return SequenceState::with_own_blocks(kv_layout_, max_rollback);
  }
  SequenceState make_placed_sequence(int64_t max_tokens) const {
    return SequenceState::with_placed_blocks(kv_layout_, max_tokens);
  }
  // Makes a placed sequence one that has processed `tokens`, and may grow to max_tokens without allocating; the blocks
  // with their rows are placed next.
  void restart(SequenceState& state, std::span<const int32_t> tokens, int64_t max_tokens);

  // Runs the steps and moves the sequences forward. logits: [number of wanted rows, vocab_size], in the order of steps
  // and tokens; resized. On failure no sequence has moved. Requires: one call at a time; token ids in range; every
  // sequence made by this model and named once.
  Status forward(std::span<const SequenceStep> steps, std::vector<float>& logits);

 private:
  Model(Checkpoint checkpoint, ModelConfig config) : checkpoint_(std::move(checkpoint)), config_(std::move(config)) {}

  void set_angles(ForwardContext& context, MatrixBuffer<float> (&cosine)[2], MatrixBuffer<float> (&sine)[2]);
  Status run_layers(ForwardContext& context, size_t begin, size_t end, MatrixView<float> streams,
                    MatrixView<float> pre);
  void write_logits(ForwardContext& context, MatrixView<const float> streams, MatrixView<const float> pre,
                    std::vector<float>& logits);

  Checkpoint checkpoint_;
  ModelConfig config_;
  LayerPlan plan_;
  std::shared_ptr<const KvLayout> kv_layout_;
  Numerics numerics_ = Numerics::kOfficial;
  std::unique_ptr<Stream> stream_;
  ModelWeights weights_;
  std::optional<EngramLookup> engram_;
  std::vector<float> frequencies_[2];  // by RopeKind
  StepLayout layout_, kept_layout_;
  Workspace work_;
};

}  // namespace deepinfer
