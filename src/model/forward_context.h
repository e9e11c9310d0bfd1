// ForwardContext: what the parts of one forward pass share, and the buffers they reuse from step to step.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "device/stream.h"
#include "model/layer_plan.h"
#include "model/model_config.h"
#include "model/numerics.h"
#include "model/step.h"
#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/indexer.h"
#include "ops/linear.h"

namespace deepinfer {

struct RopeAngles {
  MatrixView<const float> cosine;  // [rows, pairs]
  MatrixView<const float> sine;
};

// Which compressed rows each token attends to; written by index sources, read by the layers up to the next one.
struct Selection {
  MatrixView<int32_t> rows;           // [num_tokens, index_topk]
  std::span<int32_t> num_rows;        // [num_tokens]
  MatrixView<int32_t> candidates;     // [num_tokens, candidate_topk_blocks]
  std::span<int32_t> num_candidates;  // [num_tokens]
};

struct Workspace {
  MatrixBuffer<float> streams, u, u_quantised, y, mhc_projection, pre, post, mix;
  MatrixBuffer<float> cosine[2], sine[2], group_cosine, group_sine;
  MatrixBuffer<float> q_latent, q_latent_quantised, kv, q, attended, grouped, grouped_quantised;
  MatrixBuffer<float> compressor_rows, latent, index_key, index_query, index_weights;
  MatrixBuffer<float> router_logits, route_weights, expert_in, gate, up, activated, expert_out, shared_out;
  MatrixBuffer<float> engram_rows, engram_quantised, engram_key_value;
  MatrixBuffer<float> last_streams, last_pre, last_hidden;
  MatrixBuffer<float> kept_streams, kept_pre, kept_u, kept_cosine[2], kept_sine[2];
  MatrixBuffer<int32_t> routed_experts, expert_rows, selected, num_selected, candidates, num_candidates;
  std::vector<ops::LinearTask> tasks;
  std::vector<ops::AttentionQuery> attention_queries;
  std::vector<ops::IndexQuery> index_queries;
  std::vector<const ops::RowTable*> row_tables;
  std::vector<int64_t> row_numbers, row_positions;
  std::vector<int32_t> gather_list, expert_begin, kept_rows;
  std::vector<float> row_weights;
};

struct ForwardContext {
  Stream& stream;
  const ModelConfig& config;
  const LayerPlan& plan;
  Rounding rounding;
  const StepLayout& layout;
  Workspace& work;
  std::span<const float> frequencies[2] = {};  // by RopeKind
  RopeAngles angles[2] = {};                   // by RopeKind, for the step's tokens
  Selection selection = {};

  int64_t num_tokens() const { return layout.num_tokens; }

  // The input of an FP8 or FP4 linear layer: quantised into `buffer`, or as it is.
  MatrixView<const float> linear_input(MatrixView<const float> in, MatrixBuffer<float>& buffer) const {
    if (!rounding.quantise_linear_inputs) return in;
    const MatrixView<float> out = buffer.matrix(in.rows, in.cols);
    ops::fake_quant(stream, {ops::FakeQuant::kE4m3Group32, out, in});
    return out;
  }
  // What quantises cached rows: `kind`, unless the numerics quantise none.
  std::optional<ops::FakeQuant> cache_quantiser(ops::FakeQuant kind) const {
    return rounding.quantise_caches ? std::optional(kind) : std::nullopt;
  }
  // A task whose result is rounded where the model rounds.
  ops::LinearTask linear_task(MatrixView<float> out, MatrixView<const float> in,
                              const ops::PackedWeight& weight) const {
    return {out, in, &weight, rounding.round_to_bf16, rounding.round_to_bf16};
  }
  // A task whose result stays fp32.
  ops::LinearTask linear_task_f32(MatrixView<float> out, MatrixView<const float> in,
                                  const ops::PackedWeight& weight) const {
    return {out, in, &weight, rounding.round_to_bf16, false};
  }
};

}  // namespace deepinfer
