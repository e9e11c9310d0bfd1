#include "model/indexer.h"

#include "ops/indexer.h"

namespace deepinfer {

void add_index_weight_task(ForwardContext& c, const IndexerWeights& weights, ConstTensorView u) {
  c.work.tasks.push_back(c.linear_task(c.work.index_weights.rows(c.num_tokens()), u, weights.weights_proj));
}

void add_index_query_task(ForwardContext& c, const IndexerWeights& weights, ConstTensorView q_latent) {
  c.work.tasks.push_back(c.linear_task(c.work.index_query.rows(c.num_tokens()), q_latent, weights.wq_b));
}

void select_rows(ForwardContext& c, int layer, const RopeAngles& angles) {
  Workspace& w = c.work;
  const ModelConfig& config = c.config;
  const LayerRole& role = c.plan.layers[layer];
  const int64_t n = c.num_tokens();
  const TensorView q = w.index_query.rows(n);
  ops::rope(c.stream, {.data = q,
                       .num_heads = config.index_n_heads,
                       .cosine = angles.cosine,
                       .sine = angles.sine,
                       .round_to_bf16 = c.rounding.round_to_bf16,
                       .quantise = c.cache_quantiser(ops::FakeQuant::kE2m1Group32)});

  c.selection.rows = w.selected.rows(n);
  c.selection.num_rows = w.num_selected.rows(n).data;
  ops::IndexSelectArgs args{.selected = c.selection.rows,
                            .num_selected = c.selection.num_rows,
                            .q = q,
                            .head_weights = w.index_weights.rows(n),
                            .keys = c.rows.tables_of(c.kv.members[c.kv.index_keys[role.kv_source]]),
                            .positions = c.rows.positions,
                            .ratio = role.compress_ratio,
                            .max_visible = c.max_length / role.compress_ratio,
                            .num_heads = config.index_n_heads,
                            .top_k = config.index_topk};
  if (role.is_candidate_source || role.uses_candidates) {
    if (role.is_candidate_source) {
      c.selection.candidates = w.candidates.rows(n);
      c.selection.num_candidates = w.num_candidates.rows(n).data;
    }
    args.candidate_block = config.candidate_block_size;
    args.build_candidates = role.is_candidate_source;
    args.candidates = c.selection.candidates;
    args.num_candidates = c.selection.num_candidates;
  }
  ops::index_select(c.stream, args);
}

}  // namespace deepinfer
