#include "model/compressor.h"

#include "ops/compressor.h"

namespace deepinfer {

void add_compressor_tasks(ForwardContext& c, const CompressorWeights& weights, int ratio, MatrixView<const float> u) {
  const int64_t dim = c.config.head_dim;
  if (ratio == 1) {
    c.work.tasks.push_back(c.linear_task(c.work.compressor_rows.matrix(c.num_tokens(), dim), u, weights.wkv));
    return;
  }
  // [value | gate], not rounded.
  const MatrixView<float> rows = c.work.compressor_rows.matrix(c.num_tokens(), 2 * dim);
  c.work.tasks.push_back(c.linear_task_f32(rows.columns(0, dim), u, weights.wkv));
  c.work.tasks.push_back(c.linear_task_f32(rows.columns(dim, 2 * dim), u, *weights.wgate));
}

namespace {

// Pools the groups that the step completes into `latent`. The step's own rows join the open group's first.
void pool_groups(ForwardContext& c, int layer, int ratio, MatrixView<float> latent) {
  Workspace& w = c.work;
  w.row_tables.clear();
  for (const SequenceState* state : c.layout.states) w.row_tables.push_back(&state->open_group(layer));
  ops::write_rows(c.stream,
                  {w.compressor_rows.matrix(c.num_tokens(), 2 * c.config.head_dim), w.row_tables, c.layout.positions});
  w.row_tables.clear();
  w.row_numbers.clear();
  for (int64_t t = 0; t < c.num_tokens(); ++t) {
    const int64_t position = c.layout.positions[t];
    if ((position + 1) % ratio != 0) continue;
    w.row_tables.push_back(&c.layout.states[t]->open_group(layer));
    w.row_numbers.push_back(position + 1 - ratio);
  }
  ops::compress(c.stream, {latent, w.row_tables, w.row_numbers, ratio, c.rounding.round_to_bf16});
}

}  // namespace

void write_compressed_rows(ForwardContext& c, int layer, const CompressorWeights& weights) {
  Workspace& w = c.work;
  const int ratio = c.plan.layers[layer].compress_ratio;
  const bool round = c.rounding.round_to_bf16;
  const float eps = c.config.rms_norm_eps;
  int64_t num_rows = 0;
  for (const int64_t position : c.layout.positions) num_rows += (position + 1) % ratio == 0;
  if (num_rows == 0 && ratio == 1) return;
  const MatrixView<float> latent = w.latent.matrix(num_rows, c.config.head_dim);
  if (ratio > 1) {
    pool_groups(c, layer, ratio, latent);
    if (num_rows == 0) return;
    ops::rms_norm(c.stream, {latent, latent, weights.norm.data(), eps, round});
  } else {
    ops::rms_norm(c.stream,
                  {latent, w.compressor_rows.matrix(num_rows, c.config.head_dim), weights.norm.data(), eps, round});
  }

  // A row is rotated at the position of its group's first token.
  w.row_numbers.clear();
  w.row_positions.clear();
  for (const int64_t position : c.layout.positions) {
    if ((position + 1) % ratio != 0) continue;
    w.row_numbers.push_back(position / ratio);
    w.row_positions.push_back(position + 1 - ratio);
  }
  const int64_t pairs = c.config.qk_rope_head_dim / 2;
  const MatrixView<float> cosine = w.group_cosine.matrix(num_rows, pairs);
  const MatrixView<float> sine = w.group_sine.matrix(num_rows, pairs);
  ops::rope_angles(c.stream, {cosine, sine, w.row_positions, c.frequencies[static_cast<int>(RopeKind::kCompressed)]});

  const auto write = [&](MatrixView<float> rows, ops::FakeQuant quant, auto&& table_of) {
    ops::rope(c.stream, {rows, 1, cosine, sine, false, round});
    w.row_tables.clear();
    for (int64_t t = 0; t < c.num_tokens(); ++t) {
      if ((c.layout.positions[t] + 1) % ratio == 0) w.row_tables.push_back(&table_of(*c.layout.states[t]));
    }
    ops::write_rows(c.stream, {rows, w.row_tables, w.row_numbers, c.cache_quantiser(quant)});
  };
  // The index key comes from the latent before rotation and quantisation.
  const MatrixView<float> key = w.index_key.matrix(num_rows, c.config.index_head_dim);
  const ops::LinearTask task = c.linear_task(key, latent, weights.index_wk);
  ops::linear(c.stream, {&task, 1});
  ops::rms_norm(c.stream, {key, key, weights.index_k_norm.data(), eps, round});
  write(key, ops::FakeQuant::kE2m1Group32,
        [&](const SequenceState& s) -> const ops::RowTable& { return s.index_keys(layer); });
  write(latent, ops::FakeQuant::kE2m1Group16,
        [&](const SequenceState& s) -> const ops::RowTable& { return s.compressed(layer); });
}

}  // namespace deepinfer
