#include "model/moe_layer.h"

#include "ops/moe.h"

namespace deepinfer {

void moe_layer(ForwardContext& c, const MoeWeights& weights, const SublayerInput& u, TensorView y) {
  Workspace& w = c.work;
  const ModelConfig& config = c.config;
  const int64_t n = c.num_tokens();
  const MatrixView<float> logits = w.router_logits.rows(n);
  const ops::LinearTask gate = c.linear_task_f32(logits, u.plain, weights.gate);
  ops::linear(c.stream, {&gate, 1});
  const MatrixView<int32_t> experts = w.routed_experts.rows(n);
  const MatrixView<float> expert_weights = w.route_weights.rows(n);
  ops::route(c.stream, {experts, expert_weights, logits, weights.bias.data(), config.gate_temp, config.norm_topk_prob,
                        config.routed_scaling_factor});
  ops::experts(c.stream, {y, u.linear, experts, expert_weights, &weights.experts, config.swiglu_limit,
                          c.rounding.quantise_linear_inputs, c.rounding.round_to_bf16});
}

}  // namespace deepinfer
