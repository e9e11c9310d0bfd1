#include "model/moe_layer.h"

#include "ops/moe.h"

namespace deepinfer {
namespace {

// Sorts the (token, slot) pairs by expert: expert e owns rows [expert_begin[e], expert_begin[e + 1]), its tokens in
// ascending order; rows[t, slot] is the pair's row, gather_list[row] its token, row_weights[row] its weight.
void group_by_expert(Workspace& w, int64_t num_experts, MatrixView<const int32_t> experts,
                     MatrixView<const float> weights, MatrixView<int32_t> rows) {
  w.expert_begin.assign(num_experts + 1, 0);
  for (int64_t t = 0; t < experts.rows; ++t) {
    for (int64_t i = 0; i < experts.cols; ++i) ++w.expert_begin[experts.row(t)[i] + 1];
  }
  for (int64_t e = 0; e < num_experts; ++e) w.expert_begin[e + 1] += w.expert_begin[e];
  w.gather_list.resize(experts.rows * experts.cols);
  w.row_weights.assign(experts.rows * (experts.cols + 1), 1.0f);  // the shared expert's rows follow, with weight 1
  for (int64_t t = 0; t < experts.rows; ++t) {
    for (int64_t i = 0; i < experts.cols; ++i) {
      const int32_t row = w.expert_begin[experts.row(t)[i]]++;  // ends up one expert too far: shifted back below
      rows.row(t)[i] = row;
      w.gather_list[row] = static_cast<int32_t>(t);
      w.row_weights[row] = weights.row(t)[i];
    }
  }
  for (int64_t e = num_experts; e > 0; --e) w.expert_begin[e] = w.expert_begin[e - 1];
  w.expert_begin[0] = 0;
}

}  // namespace

void moe_layer(ForwardContext& c, const MoeWeights& weights, MatrixView<const float> u, MatrixView<float> y) {
  Workspace& w = c.work;
  const ModelConfig& config = c.config;
  const int64_t n = c.num_tokens();
  const int64_t top_k = config.num_experts_per_tok;
  const int64_t num_experts = config.n_routed_experts;
  const int64_t inner = config.moe_intermediate_size;
  const int64_t num_rows = n * top_k;
  const bool round = c.rounding.round_to_bf16;

  const MatrixView<float> logits = w.router_logits.matrix(n, num_experts);
  const ops::LinearTask gate_task = c.linear_task_f32(logits, u, weights.gate);
  ops::linear(c.stream, {&gate_task, 1});
  const MatrixView<int32_t> experts = w.routed_experts.matrix(n, top_k);
  const MatrixView<float> expert_weights = w.route_weights.matrix(n, top_k);
  ops::route(c.stream, {experts, expert_weights, logits, weights.bias.data(), config.gate_temp, config.norm_topk_prob,
                        config.routed_scaling_factor});
  const MatrixView<int32_t> rows = w.expert_rows.matrix(n, top_k);
  group_by_expert(w, num_experts, experts, expert_weights, rows);

  // Gate and up of every expert; the shared expert's n rows come last.
  const MatrixView<const float> in = c.linear_input(u, w.u_quantised);
  MatrixView<const float> gathered = in;
  if (n > 1) {
    const MatrixView<float> out = w.expert_in.matrix(num_rows, in.cols);
    ops::gather_rows(c.stream, {out, in, w.gather_list});
    gathered = out;
  }
  const MatrixView<float> gate = w.gate.matrix(num_rows + n, inner);
  const MatrixView<float> up = w.up.matrix(num_rows + n, inner);
  const auto input_of = [&](int64_t begin, int64_t end) { return n > 1 ? gathered.row_range(begin, end) : in; };
  const auto for_each_expert = [&](auto&& body) {
    for (int64_t e = 0; e < num_experts; ++e) {
      const int64_t begin = w.expert_begin[e], end = w.expert_begin[e + 1];
      if (begin < end) body(weights.experts[e], begin, end);
    }
  };
  w.tasks.clear();
  for_each_expert([&](const ExpertWeights& expert, int64_t begin, int64_t end) {
    w.tasks.push_back(c.linear_task(gate.row_range(begin, end), input_of(begin, end), expert.w1));
    w.tasks.push_back(c.linear_task(up.row_range(begin, end), input_of(begin, end), expert.w3));
  });
  w.tasks.push_back(c.linear_task(gate.row_range(num_rows, num_rows + n), in, weights.shared.w1));
  w.tasks.push_back(c.linear_task(up.row_range(num_rows, num_rows + n), in, weights.shared.w3));
  ops::linear(c.stream, w.tasks);

  ops::swiglu(c.stream, {gate, gate, up, w.row_weights.data(), config.swiglu_limit, round});
  const MatrixView<const float> activated = c.linear_input(gate, w.activated);

  const MatrixView<float> expert_out = w.expert_out.matrix(num_rows, config.hidden_size);
  const MatrixView<float> shared_out = w.shared_out.matrix(n, config.hidden_size);
  w.tasks.clear();
  for_each_expert([&](const ExpertWeights& expert, int64_t begin, int64_t end) {
    w.tasks.push_back(c.linear_task(expert_out.row_range(begin, end), activated.row_range(begin, end), expert.w2));
  });
  w.tasks.push_back(c.linear_task(shared_out, activated.row_range(num_rows, num_rows + n), weights.shared.w2));
  ops::linear(c.stream, w.tasks);
  ops::combine(c.stream, {y, expert_out, rows, shared_out, round});
}

}  // namespace deepinfer
