#include "model/moe_layer.h"

#include "ops/moe.h"

namespace deepinfer {

void moe_layer(ForwardContext& c, const MoeWeights& weights, const SublayerInput& u, TensorView y) {
  Workspace& w = c.work;
  const ModelConfig& config = c.config;
  const int64_t n = c.num_tokens();
  const MatrixView<int32_t> experts = w.routed_experts.rows(n);
  const MatrixView<float> expert_weights = w.route_weights.rows(n);
  ops::route(c.stream, {.experts = experts,
                        .weights = expert_weights,
                        .logits = w.router_logits.rows(n),
                        .bias = weights.bias.data(),
                        .temperature = config.gate_temp,
                        .normalise = config.norm_topk_prob,
                        .scaling = config.routed_scaling_factor,
                        .gate = &weights.gate,
                        .in = u.plain,
                        .input_is_bf16 = c.rounding.round_to_bf16});
  ops::experts(c.stream, {y, u.linear, experts, expert_weights, &weights.experts, config.swiglu_limit,
                          c.rounding.quantise_linear_inputs, c.rounding.round_to_bf16});
}

}  // namespace deepinfer
