#include "model/indexer.h"

namespace deepinfer {

void add_index_weight_task(ForwardContext& c, const IndexerWeights& weights, MatrixView<const float> u) {
  c.work.tasks.push_back(
      c.linear_task(c.work.index_weights.matrix(c.num_tokens(), c.config.index_n_heads), u, weights.weights_proj));
}

void add_index_query_task(ForwardContext& c, const IndexerWeights& weights, MatrixView<const float> q_latent) {
  c.work.tasks.push_back(
      c.linear_task(c.work.index_query.matrix(c.num_tokens(), c.config.index_n_heads * c.config.index_head_dim),
                    q_latent, weights.wq_b));
}

void select_rows(ForwardContext& c, int layer, const RopeAngles& angles) {
  Workspace& w = c.work;
  const ModelConfig& config = c.config;
  const LayerRole& role = c.plan.layers[layer];
  const int64_t n = c.num_tokens();
  const MatrixView<float> q = w.index_query.matrix(n, config.index_n_heads * config.index_head_dim);
  ops::rope(c.stream, {q, config.index_n_heads, angles.cosine, angles.sine, false, c.rounding.round_to_bf16});
  if (c.rounding.quantise_caches) ops::fake_quant(c.stream, {ops::FakeQuant::kE2m1Group32, q, q});

  w.index_queries.clear();
  for (int64_t t = 0; t < n; ++t) {
    w.index_queries.push_back(
        {&c.layout.states[t]->index_keys(role.kv_source), (c.layout.positions[t] + 1) / role.compress_ratio});
  }
  const auto list = [n](MatrixBuffer<int32_t>& buffer) { return std::span<int32_t>(buffer.matrix(1, n).data, n); };
  c.selection.rows = w.selected.matrix(n, config.index_topk);
  c.selection.num_rows = list(w.num_selected);
  ops::IndexSelectArgs args{
      c.selection.rows,     c.selection.num_rows, q, w.index_weights.matrix(n, config.index_n_heads), w.index_queries,
      config.index_n_heads, config.index_topk};
  if (role.is_candidate_source || role.uses_candidates) {
    if (role.is_candidate_source) {
      c.selection.candidates = w.candidates.matrix(n, config.candidate_topk_blocks);
      c.selection.num_candidates = list(w.num_candidates);
    }
    args.candidate_block = config.candidate_block_size;
    args.build_candidates = role.is_candidate_source;
    args.candidates = c.selection.candidates;
    args.num_candidates = c.selection.num_candidates;
  }
  ops::index_select(c.stream, args);
}

}  // namespace deepinfer
