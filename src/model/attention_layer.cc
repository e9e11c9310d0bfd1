#include "model/attention_layer.h"

#include "model/compressor.h"
#include "model/indexer.h"
#include "ops/attention.h"
#include "ops/latents.h"

namespace deepinfer {
namespace {

// What becomes of the query latents: normalised in place, and quantised if the numerics do so.
ops::LatentTask query_task(ForwardContext& c, const AttentionWeights& weights, TensorView q_latent) {
  return {.in = q_latent,
          .norm_weight = weights.q_norm.data(),
          .norm_eps = c.config.rms_norm_eps,
          .round_to_bf16 = c.rounding.round_to_bf16,
          .out = q_latent,
          .quantised = c.quantised(c.work.q_latent_quantised)};
}

// The tokens' window rows: kv normalised, rotated and quantised.
ops::LatentTask window_task(ForwardContext& c, int layer, const AttentionWeights& weights, const RopeAngles& angles,
                            ConstTensorView kv) {
  return {.in = kv,
          .norm_weight = weights.kv_norm.data(),
          .norm_eps = c.config.rms_norm_eps,
          .round_to_bf16 = c.rounding.round_to_bf16,
          .tables = c.rows.tables_of(c.kv.members[c.kv.window[layer]]),
          .positions = c.rows.positions,
          .quantise = c.cache_quantiser(ops::FakeQuant::kE4m3Group32),
          .cosine = angles.cosine,
          .sine = angles.sine};
}

void attend(ForwardContext& c, int layer, const AttentionWeights& weights, ConstTensorView q, const RopeAngles& angles,
            TensorView out) {
  const LayerRole& role = c.plan.layers[layer];
  ops::AttentionArgs args{.out = out,
                          .q = q,
                          .positions = c.rows.positions,
                          .window = c.rows.tables_of(c.kv.members[c.kv.window[layer]]),
                          .window_size = c.config.sliding_window,
                          .sink = weights.sink.data(),
                          .num_heads = c.config.num_attention_heads,
                          .cosine = angles.cosine,
                          .sine = angles.sine,
                          .round_to_bf16 = c.rounding.round_to_bf16};
  // With bounded replay the decoder has no rows before its first token; its first layer has them all.
  if (c.plan.first_decoder_layer >= 0 && layer > c.plan.first_decoder_layer)
    args.first_window_row = c.rows.decoder_begin;
  if (role.compress_ratio > 0) {
    args.compressed = c.rows.tables_of(c.kv.members[c.kv.compressed[role.kv_source]]);
    args.selected = c.selection.rows;
    args.num_selected = c.selection.num_rows;
  }
  ops::attention(c.stream, args);
}

// o: [num_tokens, heads * head_dim] -> y. Each group of heads has its own first factor.
void project_output(ForwardContext& c, const AttentionWeights& weights, ConstTensorView o, TensorView y) {
  Workspace& w = c.work;
  const int64_t groups = c.config.o_groups;
  const int64_t group_in = o.cols / groups;
  const int64_t group_out = c.config.o_lora_rank;
  const TensorView grouped = w.grouped.rows(c.num_tokens());
  w.tasks.clear();
  for (int64_t g = 0; g < groups; ++g) {
    ops::LinearTask& task =
        w.tasks.emplace_back(c.linear_task(grouped.columns(g * group_out, (g + 1) * group_out),
                                           o.columns(g * group_in, (g + 1) * group_in), weights.wo_a[g]));
    task.quantise_output = c.rounding.quantise_linear_inputs;
  }
  ops::linear(c.stream, w.tasks);
  const ops::LinearTask last = c.linear_task(y, grouped, weights.wo_b);
  ops::linear(c.stream, {&last, 1});
}

}  // namespace

void attention_layer(ForwardContext& c, int layer, const AttentionWeights& weights, const SublayerInput& u,
                     TensorView y, AttentionPart part) {
  Workspace& w = c.work;
  const int64_t n = c.num_tokens();
  const LayerRole& role = c.plan.layers[layer];
  const RopeAngles& angles = c.angles[static_cast<int>(role.rope)];
  const bool rows = part != AttentionPart::kQueries;
  const bool queries = part != AttentionPart::kRows;

  // Everything that reads u, in one call.
  const TensorView q_latent = w.q_latent.rows(n);
  const TensorView kv = w.kv.rows(n);
  w.tasks.clear();
  if (queries) w.tasks.push_back(c.linear_task(q_latent, u.linear, weights.wq_a));
  if (rows) w.tasks.push_back(c.linear_task(kv, u.linear, weights.wkv));
  if (rows && weights.compressor) add_compressor_tasks(c, *weights.compressor, role.compress_ratio, u.plain);
  if (queries && weights.indexer) add_index_weight_task(c, *weights.indexer, u.plain);
  ops::linear(c.stream, w.tasks);

  // What the products left, in one call too.
  ops::LatentTask latents[3];
  size_t count = 0;
  if (queries) latents[count++] = query_task(c, weights, q_latent);
  if (rows) latents[count++] = window_task(c, layer, weights, angles, kv);
  if (rows && weights.compressor) latents[count++] = compressor_task(c, layer, *weights.compressor);
  ops::latents(c.stream, {latents, count});
  if (rows && weights.compressor) write_compressed_rows(c, layer, *weights.compressor);
  if (!queries) return;

  // Everything that reads the query latent.
  const TensorView quantised = c.quantised(w.q_latent_quantised);
  const ConstTensorView q_in = quantised ? quantised : q_latent;
  const TensorView q = w.q.rows(n);
  w.tasks.clear();
  w.tasks.push_back(c.linear_task(q, q_in, weights.wq_b));
  if (weights.indexer) add_index_query_task(c, *weights.indexer, q_in);
  ops::linear(c.stream, w.tasks);
  if (weights.indexer) select_rows(c, layer, angles);

  const TensorView attended = w.attended.rows(n);
  attend(c, layer, weights, q, angles, attended);
  project_output(c, weights, attended, y);
}

}  // namespace deepinfer
