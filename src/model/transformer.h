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
#include "device/array.h"
#include "device/stream.h"
#include "model/decoder_layer.h"
#include "model/engram_layer.h"
#include "model/forward_context.h"
#include "model/numerics.h"
#include "model/sequence_state.h"
#include "model/step.h"
#include "model/step_graphs.h"
#include "model/step_inputs.h"
#include "model/weights.h"
#include "model/workspace.h"

namespace deepinfer {

struct ModelOptions {
  Numerics numerics = Numerics::kOfficial;
  KvFormat kv_format = KvFormat::kBf16;
  int64_t engram_cache_rows = int64_t{1} << 16;  // of each table
  LoadProgress progress;
};

// Device memory.
struct StepOutputs {
  MatrixView<const float> logits;  // of the rows that are wanted, in the order of steps and tokens
  const int32_t* drawn =
      nullptr;  // [rows of logits]: tokens, -1 where a row is not finite, undefined where none is drawn
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

  // A sequence with memory of its own, and one whose blocks a cache places (in the device's memory, after `restart`).
  SequenceState make_sequence(int64_t max_rollback = 0) const {
    return SequenceState::with_own_blocks(device_, kv_layout_, max_rollback);
  }
  SequenceState make_placed_sequence() const { return SequenceState::with_placed_blocks(device_, kv_layout_); }
  // Makes a placed sequence one that has processed `tokens`, and may grow to max_tokens without allocating; the blocks
  // with their rows are placed next.
  Status restart(SequenceState& state, std::span<const int32_t> tokens, int64_t max_tokens);

  // Takes the memory that steps of so many rows need besides caches and what ops keep.
  Status reserve(const StepInputs::Shape& rows);

  // Runs the steps and moves the sequences forward. logits: [number of wanted rows, vocab_size], in the order of steps
  // and tokens; resized. On failure no sequence has moved. Requires: one call at a time; token ids in range; every
  // sequence made by this model and named once.
  Status forward(std::span<const SequenceStep> steps, std::vector<float>& logits);
  // The same without waiting, in two halves; results are device memory, there when the stream gets there and until the
  // next step does. What fails on the device is told by synchronising the stream. `begin` does all that can be done
  // before the host knows tokens that the device drew; in `complete` they stand in the steps, which are the same ones
  // otherwise. The device may still run the step before. `started` (or null) is recorded where the step's work begins.
  Status begin(std::span<const SequenceStep> steps, Event* started = nullptr);
  Status complete(std::span<const SequenceStep> steps, StepOutputs& outputs);
  // Waits until the device has read what the last call wrote for it in host memory, such as tables of sequences.
  Status wait_for_inputs() { return inputs_read_->wait(); }
  Stream& stream() { return *stream_; }

  // Whether the device can draw tokens (SequenceStep::draw); and before the first step, that it shall, for sequences in
  // so many slots.
  bool can_draw() const;
  void draw_for_slots(int32_t num_slots) { inputs_.set_slots(num_slots); }

 private:
  Model(Device& device, Checkpoint checkpoint, ModelConfig config, const ModelOptions& options);

  // What is fixed about a step before it runs.
  struct Plan {
    StepInputs::Shape shape;
    int64_t max_length = 0;
    bool skips = false;       // some tokens skip the decoder
    bool recordable = false;  // the ops are a function of shape and max_length
    Event* started = nullptr;
  };
  Plan plan_step(std::span<const SequenceStep> steps);
  Status upload_engram(std::span<const SequenceStep> steps);
  void mark_start();
  bool draws() const { return inputs_.num_slots() > 0; }
  size_t first_engram_layer() const;
  Residual residual_of(const ForwardContext& context);
  void embed_tokens(TensorView streams);
  Status run_first(const Plan& plan);
  Status run_rest(const Plan& plan);
  Status run(const Plan& plan);
  Status run_layers(ForwardContext& context, size_t begin, size_t end, Residual& residual);
  ForwardContext context_of(const Plan& plan, const StepLayout& layout, const StepRows& rows);
  void use_angles(ForwardContext& context, const AngleBuffers& plain, const AngleBuffers& compressed);
  void set_angles(ForwardContext& context, const AngleBuffers& plain, const AngleBuffers& compressed);
  void write_logits(ForwardContext& context, Residual& residual, int64_t num_rows);

  Device& device_;
  Checkpoint checkpoint_;
  ModelConfig config_;
  LayerPlan plan_;
  Numerics numerics_;
  std::shared_ptr<const KvLayout> kv_layout_;
  std::unique_ptr<Stream> stream_;
  ModelWeights weights_;
  std::optional<EngramLookup> engram_;
  DeviceArray<float> frequencies_[2];  // by RopeKind
  StepLayout layout_, kept_layout_;
  std::vector<int32_t> kept_rows_;
  StepInputs inputs_;
  Workspace work_;
  StepGraphs graphs_;
  Plan plan_of_step_;  // from `begin` to `complete`
  std::unique_ptr<Event> inputs_read_;
};

}  // namespace deepinfer
