#include "model/decoder_layer.h"

#include "model/attention_layer.h"
#include "model/moe_layer.h"
#include "ops/mhc.h"

namespace deepinfer {
namespace {

// u = norm(collapse(streams, pre)); then pre, post and mix become this sublayer's, computed from the same streams.
void begin_sublayer(ForwardContext& c, const MhcWeights& weights, const std::vector<float>& norm,
                    MatrixView<float> streams, MatrixView<float> pre, MatrixView<float> u) {
  const ModelConfig& config = c.config;
  const int64_t h = config.hc_mult;
  ops::mhc_collapse(c.stream, {u, streams, pre, norm.data(), config.rms_norm_eps, c.rounding.round_to_bf16});
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

}  // namespace

void decoder_layer(ForwardContext& c, int layer, const LayerWeights& weights, MatrixView<float> streams,
                   MatrixView<float> pre) {
  const MatrixView<float> u = c.work.u.matrix(c.num_tokens(), c.config.hidden_size);
  const MatrixView<float> y = c.work.y.matrix(c.num_tokens(), c.config.hidden_size);
  begin_sublayer(c, weights.attention_mhc, weights.attention.norm, streams, pre, u);
  attention_layer(c, layer, weights.attention, u, y);
  end_sublayer(c, streams, y);
  begin_sublayer(c, weights.ffn_mhc, weights.moe.norm, streams, pre, u);
  moe_layer(c, weights.moe, u, y);
  end_sublayer(c, streams, y);
}

}  // namespace deepinfer
