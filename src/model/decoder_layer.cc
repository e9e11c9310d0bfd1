#include "model/decoder_layer.h"

#include "model/attention_layer.h"
#include "model/moe_layer.h"
#include "ops/mhc.h"

namespace deepinfer {
namespace {

// u = norm(collapse(streams, pre)).
void collapse(ForwardContext& c, const std::vector<float>& norm, MatrixView<float> streams, MatrixView<float> pre,
              MatrixView<float> u) {
  ops::mhc_collapse(c.stream, {u, streams, pre, norm.data(), c.config.rms_norm_eps, c.rounding.round_to_bf16});
}

// pre, post and mix become this sublayer's, computed from the streams that it collapsed.
void compute_coefficients(ForwardContext& c, const MhcWeights& weights, MatrixView<float> streams,
                          MatrixView<float> pre) {
  const ModelConfig& config = c.config;
  const int64_t h = config.hc_mult;
  const MatrixView<float> projection = c.work.mhc_projection.matrix(c.num_tokens(), h * (h + 2));
  const ops::LinearTask task = c.linear_task_f32(projection, streams, weights.fn);
  ops::linear(c.stream, {&task, 1});
  ops::mhc_coefficients(c.stream, {pre, c.work.post.matrix(c.num_tokens(), h), c.work.mix.matrix(c.num_tokens(), h * h),
                                   projection, streams, weights.scale.data(), weights.base.data(), h,
                                   static_cast<int>(config.hc_sinkhorn_iters), config.hc_eps, config.rms_norm_eps});
}

void end_sublayer(ForwardContext& c, MatrixView<float> streams, MatrixView<const float> y) {
  const int64_t h = c.config.hc_mult;
  ops::mhc_update(c.stream, {streams, y, c.work.post.matrix(c.num_tokens(), h),
                             c.work.mix.matrix(c.num_tokens(), h * h), c.rounding.round_to_bf16});
}

// What follows the attention's output y.
void finish_layer(ForwardContext& c, const LayerWeights& weights, MatrixView<float> streams, MatrixView<float> pre,
                  MatrixView<float> u, MatrixView<float> y) {
  end_sublayer(c, streams, y);
  collapse(c, weights.moe.norm, streams, pre, u);
  compute_coefficients(c, weights.ffn_mhc, streams, pre);
  moe_layer(c, weights.moe, u, y);
  end_sublayer(c, streams, y);
}

}  // namespace

void decoder_layer(ForwardContext& c, int layer, const LayerWeights& weights, MatrixView<float> streams,
                   MatrixView<float> pre) {
  const MatrixView<float> u = c.work.u.matrix(c.num_tokens(), c.config.hidden_size);
  const MatrixView<float> y = c.work.y.matrix(c.num_tokens(), c.config.hidden_size);
  collapse(c, weights.attention.norm, streams, pre, u);
  compute_coefficients(c, weights.attention_mhc, streams, pre);
  attention_layer(c, layer, weights.attention, u, y);
  finish_layer(c, weights, streams, pre, u, y);
}

void decoder_layer_keeping(ForwardContext& all, ForwardContext& kept, std::span<const int32_t> rows, int layer,
                           const LayerWeights& weights, MatrixView<float> streams, MatrixView<float> pre,
                           MatrixView<float> kept_streams, MatrixView<float> kept_pre) {
  Workspace& w = all.work;
  const MatrixView<float> all_u = w.u.matrix(all.num_tokens(), all.config.hidden_size);
  collapse(all, weights.attention.norm, streams, pre, all_u);
  attention_layer(all, layer, weights.attention, all_u, {}, AttentionPart::kRows);
  if (rows.empty()) return;
  const MatrixView<float> u = w.kept_u.matrix(kept.num_tokens(), kept.config.hidden_size);
  const MatrixView<float> y = w.y.matrix(kept.num_tokens(), kept.config.hidden_size);
  ops::gather_rows(all.stream, {kept_streams, streams, rows});
  ops::gather_rows(all.stream, {kept_pre, pre, rows});
  ops::gather_rows(all.stream, {u, all_u, rows});
  compute_coefficients(kept, weights.attention_mhc, kept_streams, kept_pre);
  attention_layer(kept, layer, weights.attention, u, y, AttentionPart::kQueries);
  finish_layer(kept, weights, kept_streams, kept_pre, u, y);
}

}  // namespace deepinfer
