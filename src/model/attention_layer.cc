#include "model/attention_layer.h"

#include "model/compressor.h"
#include "model/indexer.h"

namespace deepinfer {
namespace {

// kv: normalised, not yet rotated. Rotates it and appends it, quantised, as the tokens' window rows.
void write_window_rows(ForwardContext& c, int layer, const RopeAngles& angles, MatrixView<float> kv) {
  Workspace& w = c.work;
  ops::rope(c.stream, {kv, 1, angles.cosine, angles.sine, false, c.rounding.round_to_bf16});
  w.row_tables.clear();
  for (const SequenceState* state : c.layout.states) w.row_tables.push_back(&state->window(layer));
  ops::write_rows(c.stream, {kv, w.row_tables, c.layout.positions, c.cache_quantiser(ops::FakeQuant::kE4m3Group32)});
}

void attend(ForwardContext& c, int layer, const AttentionWeights& weights, MatrixView<const float> q,
            MatrixView<float> out) {
  Workspace& w = c.work;
  const LayerRole& role = c.plan.layers[layer];
  const bool decoder = c.plan.first_decoder_layer >= 0 && layer > c.plan.first_decoder_layer;
  w.attention_queries.clear();
  for (int64_t t = 0; t < c.num_tokens(); ++t) {
    const SequenceState& state = *c.layout.states[t];
    const int64_t end = c.layout.positions[t] + 1;
    int64_t begin = std::max<int64_t>(0, end - c.config.sliding_window);
    // With bounded replay the decoder has no rows before its first token; its first layer has them all.
    if (decoder && c.layout.decoder_begin[t] < end) begin = std::max(begin, c.layout.decoder_begin[t]);
    ops::AttentionQuery query{&state.window(layer), begin, end};
    if (role.compress_ratio > 0) {
      query.compressed = &state.compressed(role.kv_source);
      query.selected = c.selection.rows.row(t);
      query.num_selected = c.selection.num_rows[t];
    }
    w.attention_queries.push_back(query);
  }
  ops::attention(c.stream, {out, q, w.attention_queries, weights.sink.data(), c.config.num_attention_heads,
                            c.rounding.round_to_bf16});
}

// o: [num_tokens, heads * head_dim] -> y. Each group of heads has its own first factor.
void project_output(ForwardContext& c, const AttentionWeights& weights, MatrixView<const float> o,
                    MatrixView<float> y) {
  Workspace& w = c.work;
  const int64_t groups = c.config.o_groups;
  const int64_t group_in = o.cols / groups;
  const int64_t group_out = c.config.o_lora_rank;
  const MatrixView<float> grouped = w.grouped.matrix(c.num_tokens(), groups * group_out);
  w.tasks.clear();
  for (int64_t g = 0; g < groups; ++g) {
    w.tasks.push_back(c.linear_task(grouped.columns(g * group_out, (g + 1) * group_out),
                                    o.columns(g * group_in, (g + 1) * group_in), weights.wo_a[g]));
  }
  ops::linear(c.stream, w.tasks);
  const ops::LinearTask last = c.linear_task(y, c.linear_input(grouped, w.grouped_quantised), weights.wo_b);
  ops::linear(c.stream, {&last, 1});
}

}  // namespace

void attention_layer(ForwardContext& c, int layer, const AttentionWeights& weights, MatrixView<const float> u,
                     MatrixView<float> y, AttentionPart part) {
  Workspace& w = c.work;
  const ModelConfig& config = c.config;
  const LayerRole& role = c.plan.layers[layer];
  const RopeAngles& angles = c.angles[static_cast<int>(role.rope)];
  const bool round = c.rounding.round_to_bf16;
  const bool rows = part != AttentionPart::kQueries;
  const bool queries = part != AttentionPart::kRows;

  // Everything that reads u, in one call.
  const MatrixView<const float> u_in = c.linear_input(u, w.u_quantised);
  const MatrixView<float> q_latent = w.q_latent.matrix(c.num_tokens(), config.q_lora_rank);
  const MatrixView<float> kv = w.kv.matrix(c.num_tokens(), config.head_dim);
  w.tasks.clear();
  if (queries) w.tasks.push_back(c.linear_task(q_latent, u_in, weights.wq_a));
  if (rows) w.tasks.push_back(c.linear_task(kv, u_in, weights.wkv));
  if (rows && weights.compressor) add_compressor_tasks(c, *weights.compressor, role.compress_ratio, u);
  if (queries && weights.indexer) add_index_weight_task(c, *weights.indexer, u);
  ops::linear(c.stream, w.tasks);
  if (rows) {
    ops::rms_norm(c.stream, {kv, kv, weights.kv_norm.data(), config.rms_norm_eps, round});
    write_window_rows(c, layer, angles, kv);
    if (weights.compressor) write_compressed_rows(c, layer, *weights.compressor);
  }
  if (!queries) return;

  // Everything that reads the query latent.
  ops::rms_norm(c.stream, {q_latent, q_latent, weights.q_norm.data(), config.rms_norm_eps, round});
  const MatrixView<const float> q_in = c.linear_input(q_latent, w.q_latent_quantised);
  const MatrixView<float> q = w.q.matrix(c.num_tokens(), config.num_attention_heads * config.head_dim);
  w.tasks.clear();
  w.tasks.push_back(c.linear_task(q, q_in, weights.wq_b));
  if (weights.indexer) add_index_query_task(c, *weights.indexer, q_in);
  ops::linear(c.stream, w.tasks);
  ops::rope(c.stream, {q, config.num_attention_heads, angles.cosine, angles.sine, false, round});
  if (weights.indexer) select_rows(c, layer, angles);

  const MatrixView<float> attended = w.attended.matrix(c.num_tokens(), q.cols);
  attend(c, layer, weights, q, attended);
  ops::rope(c.stream, {attended, config.num_attention_heads, angles.cosine, angles.sine, true, round});
  project_output(c, weights, attended, y);
}

}  // namespace deepinfer
