#include "model/compressor.h"

#include "ops/compressor.h"

namespace deepinfer {

void add_compressor_tasks(ForwardContext& c, const CompressorWeights& weights, int ratio, ConstTensorView u) {
  Workspace& w = c.work;
  if (ratio == 1) {
    w.tasks.push_back(c.linear_task(w.compressor_latent.rows(c.num_tokens()), u, weights.wkv));
    return;
  }
  // [value | gate], not rounded.
  const MatrixView<float> rows = w.compressor_rows.rows(c.num_tokens());
  const int64_t dim = c.config.head_dim;
  w.tasks.push_back(c.linear_task_f32(rows.columns(0, dim), u, weights.wkv));
  w.tasks.push_back(c.linear_task_f32(rows.columns(dim, 2 * dim), u, *weights.wgate));
}

void write_compressed_rows(ForwardContext& c, int layer, const CompressorWeights& weights) {
  Workspace& w = c.work;
  const int64_t n = c.num_tokens();
  const int ratio = c.plan.layers[layer].compress_ratio;
  const bool round = c.rounding.round_to_bf16;
  const float eps = c.config.rms_norm_eps;
  const auto tables = [&](const std::vector<int>& members) { return c.rows.tables_of(c.kv.members[members[layer]]); };

  // A row a token; those of tokens that end no group are not used.
  const TensorView latent = w.latent.rows(n);
  if (ratio == 1) {
    ops::rms_norm(c.stream, {latent, w.compressor_latent.rows(n), weights.norm.data(), eps, round});
  } else {
    // The step's own rows join the open group's first.
    const ops::RowTables open_group = tables(c.kv.open_group);
    ops::write_rows(c.stream, {.in = w.compressor_rows.rows(n), .tables = open_group, .positions = c.rows.positions});
    if (!c.may_close_groups(ratio)) return;
    ops::compress(c.stream, {latent, open_group, c.rows.positions, ratio, round});
    ops::rms_norm(c.stream, {latent, latent, weights.norm.data(), eps, round});
  }

  // The index key comes from the latent before rotation and quantisation.
  const TensorView key = w.index_key.rows(n);
  const ops::LinearTask task = c.linear_task(key, latent, weights.index_wk);
  ops::linear(c.stream, {&task, 1});
  ops::rms_norm(c.stream, {key, key, weights.index_k_norm.data(), eps, round});
  // A row is rotated at the position of its group's first token.
  const RopeAngles angles = c.angles_of_groups(ratio);
  const auto write = [&](ConstTensorView rows, const std::vector<int>& members, ops::FakeQuant quantiser) {
    ops::write_rows(c.stream, {.in = rows,
                               .tables = tables(members),
                               .positions = c.rows.positions,
                               .ratio = ratio,
                               .quantise = c.cache_quantiser(quantiser),
                               .cosine = angles.cosine,
                               .sine = angles.sine,
                               .round_to_bf16 = round});
  };
  write(key, c.kv.index_keys, ops::FakeQuant::kE2m1Group32);
  write(latent, c.kv.compressed, ops::FakeQuant::kE2m1Group16);
}

}  // namespace deepinfer
