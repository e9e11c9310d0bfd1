#include "model/decoder_layer.h"

#include "model/attention_layer.h"
#include "model/moe_layer.h"

namespace deepinfer {
namespace {

ops::MhcWeights mhc_weights(const ForwardContext& c, const MhcWeights& weights) {
  return {.fn = &weights.fn,
          .scale = weights.scale.data(),
          .base = weights.base.data(),
          .num_streams = c.config.hc_mult,
          .iterations = static_cast<int>(c.config.hc_sinkhorn_iters),
          .eps = c.config.hc_eps,
          .norm_eps = c.config.rms_norm_eps};
}

// Ends the last sublayer and begins the next: its input, and its coefficients in the residual.
SublayerInput begin_sublayer(ForwardContext& c, const MhcWeights& weights, const DeviceArray<float>& norm,
                             Residual& residual) {
  const TensorView u = c.work.u.rows(c.num_tokens());
  const TensorView quantised = c.quantised(c.work.u_quantised);
  ops::mhc_boundary(c.stream, {.weights = mhc_weights(c, weights),
                               .coefficients = residual.coefficients,
                               .streams = residual.streams,
                               .y = residual.result,
                               .out = u,
                               .quantised = quantised,
                               .norm_weight = norm.data(),
                               .round_to_bf16 = c.rounding.round_to_bf16});
  residual.result = {};
  return ForwardContext::sublayer_input(u, quantised);
}

// What follows the attention.
void run_experts(ForwardContext& c, const LayerWeights& weights, Residual& residual) {
  const SublayerInput u = begin_sublayer(c, weights.ffn_mhc, weights.moe.norm, residual);
  const TensorView y = c.work.y.rows(c.num_tokens());
  moe_layer(c, weights.moe, u, y);
  residual.result = y;
}

}  // namespace

void settle(ForwardContext& c, Residual& residual) {
  if (!residual.result) return;
  ops::mhc_update(c.stream, {residual.streams, residual.result, residual.coefficients.post, residual.coefficients.mix,
                             c.rounding.round_to_bf16});
  residual.result = {};
}

void decoder_layer(ForwardContext& c, int layer, const LayerWeights& weights, Residual& residual) {
  const SublayerInput u = begin_sublayer(c, weights.attention_mhc, weights.attention.norm, residual);
  const TensorView y = c.work.y.rows(c.num_tokens());
  attention_layer(c, layer, weights.attention, u, y);
  residual.result = y;
  run_experts(c, weights, residual);
}

void decoder_layer_keeping(ForwardContext& all, ForwardContext& kept, const int32_t* rows, int layer,
                           const LayerWeights& weights, Residual& residual, Residual& kept_residual) {
  Workspace& w = all.work;
  settle(all, residual);
  const TensorView all_u = w.u.rows(all.num_tokens());
  const TensorView all_quantised = all.quantised(w.u_quantised);
  ops::mhc_collapse(all.stream, {all_u, residual.streams, residual.coefficients.pre, weights.attention.norm.data(),
                                 all.config.rms_norm_eps, all.rounding.round_to_bf16, all_quantised});
  attention_layer(all, layer, weights.attention, ForwardContext::sublayer_input(all_u, all_quantised), {},
                  AttentionPart::kRows);
  if (kept.num_tokens() == 0) return;

  const TensorView u = w.kept_u.rows(kept.num_tokens());
  const TensorView quantised = kept.quantised(w.kept_u_quantised);
  ops::gather_rows(all.stream, {kept_residual.streams, residual.streams, rows});
  ops::gather_rows(all.stream, {kept_residual.coefficients.pre, residual.coefficients.pre, rows});
  ops::gather_rows(all.stream, {u, all_u, rows});
  if (quantised) ops::gather_rows(all.stream, {quantised, all_quantised, rows});
  ops::mhc_coefficients(all.stream,
                        {mhc_weights(kept, weights.attention_mhc), kept_residual.coefficients, kept_residual.streams});
  const TensorView y = w.y.rows(kept.num_tokens());
  attention_layer(kept, layer, weights.attention, ForwardContext::sublayer_input(u, quantised), y,
                  AttentionPart::kQueries);
  kept_residual.result = y;
  run_experts(kept, weights, kept_residual);
}

}  // namespace deepinfer
