// ForwardContext: what the parts of one forward pass share.
#pragma once

#include <cstdint>
#include <optional>

#include "device/stream.h"
#include "model/kv_layout.h"
#include "model/layer_plan.h"
#include "model/model_config.h"
#include "model/numerics.h"
#include "model/step.h"
#include "model/step_inputs.h"
#include "model/workspace.h"
#include "ops/elementwise.h"
#include "ops/linear.h"

namespace deepinfer {

struct RopeAngles {
  MatrixView<const float> cosine;  // [rows, pairs]
  MatrixView<const float> sine;
};

// Which compressed rows each token attends to; written by index sources, read by the layers up to the next one.
struct Selection {
  MatrixView<int32_t> rows;           // [num_tokens, index_topk]
  int32_t* num_rows = nullptr;        // [num_tokens]
  MatrixView<int32_t> candidates;     // [num_tokens, candidate_topk_blocks]
  int32_t* num_candidates = nullptr;  // [num_tokens]
};

// What a sublayer reads: the normalised mix of the streams, and what of it FP8 and FP4 weights multiply: quantised if
// the numerics do so, else the same.
struct SublayerInput {
  ConstTensorView plain;
  ConstTensorView linear;
};

struct ForwardContext {
  Stream& stream;
  const ModelConfig& config;
  const LayerPlan& plan;
  const KvLayout& kv;
  Rounding rounding;
  // The step's own tokens. What ops are called, and with what, may depend on it unless `recordable`.
  const StepLayout& layout;
  StepRows rows;
  Workspace& work;
  // The step's ops must be a function of the number of rows and max_length: they are recorded or may be next time.
  bool recordable = false;
  int64_t max_length = 0;     // no token has a greater position + 1
  RopeAngles angles[2] = {};  // by RopeKind
  Selection selection = {};

  int64_t num_tokens() const { return rows.count; }

  // Of each token's group of `ratio` tokens. Requires: a ratio of a KV source.
  RopeAngles angles_of_groups(int ratio) const;

  // Whether something has to be done for groups of `ratio` that this step ends: some end, or some might.
  bool may_close_groups(int ratio) const {
    if (recordable || ratio == 1) return true;
    for (const int64_t position : layout.positions) {
      if ((position + 1) % ratio == 0) return true;
    }
    return false;
  }

  // `buffer`, or nothing if the numerics quantise no linear inputs.
  TensorView quantised(const TensorBuffer& buffer) const {
    return rounding.quantise_linear_inputs ? buffer.rows(num_tokens()) : TensorView();
  }
  static SublayerInput sublayer_input(ConstTensorView plain, ConstTensorView quantised) {
    return {plain, quantised ? quantised : plain};
  }
  // What quantises cached rows: `kind`, unless the numerics quantise none.
  std::optional<ops::FakeQuant> cache_quantiser(ops::FakeQuant kind) const {
    return rounding.quantise_caches ? std::optional(kind) : std::nullopt;
  }
  // A task whose result is rounded where the model rounds.
  ops::LinearTask linear_task(TensorView out, ConstTensorView in, const ops::PackedWeight& weight) const {
    return {out, in, &weight, rounding.round_to_bf16, rounding.round_to_bf16};
  }
  // A task whose result stays fp32.
  ops::LinearTask linear_task_f32(MatrixView<float> out, ConstTensorView in, const ops::PackedWeight& weight) const {
    return {out, in, &weight, rounding.round_to_bf16, false};
  }
};

}  // namespace deepinfer
