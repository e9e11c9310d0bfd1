#include "model/compressor.h"

#include "ops/compressor.h"

namespace deepinfer {
namespace {

ops::LatentTask normalising(ForwardContext& c, ConstTensorView in, const DeviceArray<float>& weight, TensorView out) {
  return {.in = in,
          .norm_weight = weight.data(),
          .norm_eps = c.config.rms_norm_eps,
          .round_to_bf16 = c.rounding.round_to_bf16,
          .out = out};
}

// `task`, its rows stored as those of groups of the layer's ratio. A row is rotated at the position of its group's
// first token.
ops::LatentTask stored(ForwardContext& c, ops::LatentTask task, int ratio, int member, ops::FakeQuant quantiser) {
  const RopeAngles angles = c.angles_of_groups(ratio);
  task.tables = c.rows.tables_of(c.kv.members[member]);
  task.positions = c.rows.positions;
  task.ratio = ratio;
  task.quantise = c.cache_quantiser(quantiser);
  task.cosine = angles.cosine, task.sine = angles.sine;
  return task;
}

}  // namespace

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

ops::LatentTask compressor_task(ForwardContext& c, int layer, const CompressorWeights& weights) {
  Workspace& w = c.work;
  const int64_t n = c.num_tokens();
  if (c.plan.layers[layer].compress_ratio == 1) {
    return normalising(c, w.compressor_latent.rows(n), weights.norm, w.latent.rows(n));
  }
  // The step's own rows join the open group's.
  return {.in = w.compressor_rows.rows(n),
          .tables = c.rows.tables_of(c.kv.members[c.kv.open_group[layer]]),
          .positions = c.rows.positions};
}

void write_compressed_rows(ForwardContext& c, int layer, const CompressorWeights& weights) {
  Workspace& w = c.work;
  const int64_t n = c.num_tokens();
  const int ratio = c.plan.layers[layer].compress_ratio;

  // A row a token; those of tokens that end no group are not used.
  const TensorView latent = w.latent.rows(n);
  if (ratio > 1) {
    if (!c.may_close_groups(ratio)) return;
    const ops::RowTables open_group = c.rows.tables_of(c.kv.members[c.kv.open_group[layer]]);
    ops::compress(c.stream, {latent, open_group, c.rows.positions, ratio, c.rounding.round_to_bf16});
    const ops::LatentTask task = normalising(c, latent, weights.norm, latent);
    ops::latents(c.stream, {&task, 1});
  }

  // The index key comes from the latent before rotation and quantisation.
  const TensorView key = w.index_key.rows(n);
  const ops::LinearTask key_product = c.linear_task(key, latent, weights.index_wk);
  ops::linear(c.stream, {&key_product, 1});
  const ops::LatentTask tasks[] = {
      stored(c, normalising(c, key, weights.index_k_norm, {}), ratio, c.kv.index_keys[layer],
             ops::FakeQuant::kE2m1Group32),
      stored(c, {.in = latent, .round_to_bf16 = c.rounding.round_to_bf16}, ratio, c.kv.compressed[layer],
             ops::FakeQuant::kE2m1Group16),
  };
  ops::latents(c.stream, tasks);
}

}  // namespace deepinfer
