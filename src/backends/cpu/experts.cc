#include "backends/cpu/experts.h"

#include "backends/cpu/cpu_stream.h"
#include "base/number_formats.h"
#include "ops/op_table.h"

namespace deepinfer::cpu {
namespace {

// Fills begin, rows, row_tokens and row_weights. An expert's tokens are in ascending order.
void group_by_expert(ExpertsWorkspace& w, const ops::ExpertsArgs& a) {
  const int64_t num_tokens = a.experts.rows, top_k = a.experts.cols;
  const int64_t num_experts = static_cast<int64_t>(a.bank->routed.size());
  w.begin.assign(num_experts + 1, 0);
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t i = 0; i < top_k; ++i) ++w.begin[a.experts.row(t)[i] + 1];
  }
  for (int64_t e = 0; e < num_experts; ++e) w.begin[e + 1] += w.begin[e];
  auto* rows = w.rows.get<int32_t>(num_tokens * top_k);
  auto* row_tokens = w.row_tokens.get<int32_t>(num_tokens * top_k);
  auto* row_weights = w.row_weights.get<float>(num_tokens * (top_k + 1));
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t i = 0; i < top_k; ++i) {
      const int64_t row = w.begin[a.experts.row(t)[i]]++;  // ends up one expert too far: shifted back below
      rows[t * top_k + i] = static_cast<int32_t>(row);
      row_tokens[row] = static_cast<int32_t>(t);
      row_weights[row] = a.weights.row(t)[i];
    }
    row_weights[num_tokens * top_k + t] = 1.0f;
  }
  for (int64_t e = num_experts; e > 0; --e) w.begin[e] = w.begin[e - 1];
  w.begin[0] = 0;
}

// out[t] = the outputs of the token's rows in slot order, then + the shared expert's.
void combine(Stream& stream, MatrixView<float> out, MatrixView<const float> expert_out, const int32_t* rows,
             int64_t top_k, bool round) {
  const int64_t hidden = out.cols, num_rows = out.rows * top_k;
  constexpr int64_t kValuesPerTask = 16384;
  const int64_t grain = kValuesPerTask / (hidden * (top_k + 1)) + 1;
  for_ranges(stream, out.rows, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      float* sum = out.row(t);
      const float* shared = expert_out.row(num_rows + t);
      for (int64_t c = 0; c < hidden; ++c) sum[c] = 0;
      for (int64_t i = 0; i < top_k; ++i) {
        const float* expert = expert_out.row(rows[t * top_k + i]);
        for (int64_t c = 0; c < hidden; ++c) sum[c] += expert[c];
      }
      for (int64_t c = 0; c < hidden; ++c) sum[c] += shared[c];
      if (round) {
        for (int64_t c = 0; c < hidden; ++c) sum[c] = round_to_bfloat16(sum[c]);
      }
    }
  });
}

void experts_op(Stream& stream, const ops::ExpertsArgs& a) {
  ExpertsWorkspace& w = cpu_stream(stream).experts_workspace();
  const ops::OpTable& table = stream.ops();
  const MatrixView<const float> in = a.in.f32();
  const int64_t n = in.rows, hidden = in.cols, inner = a.bank->shared.w1.rows;
  const int64_t num_rows = n * a.experts.cols;
  group_by_expert(w, a);

  // A single token's rows all read the same input.
  MatrixView<const float> gathered = in;
  if (n > 1) {
    const MatrixView<float> out = dense(w.in.get<float>(num_rows * hidden), num_rows, hidden);
    table.gather_rows(stream, {out, in, w.row_tokens.get<int32_t>(num_rows)});
    gathered = out;
  }
  const auto input_of = [&](int64_t begin, int64_t end) { return n > 1 ? gathered.row_range(begin, end) : in; };
  const auto task = [&](MatrixView<float> out, MatrixView<const float> input, const ops::PackedWeight& weight) {
    return ops::LinearTask{out, input, &weight, a.round_to_bf16, a.round_to_bf16};
  };
  const auto for_each_expert = [&](auto&& body) {
    for (size_t e = 0; e < a.bank->routed.size(); ++e) {
      const int64_t begin = w.begin[e], end = w.begin[e + 1];
      if (begin < end) body(a.bank->routed[e], begin, end);
    }
  };

  const int64_t all = num_rows + n;
  const MatrixView<float> gate = dense(w.gate.get<float>(all * inner), all, inner);
  const MatrixView<float> up = dense(w.up.get<float>(all * inner), all, inner);
  w.tasks.clear();
  for_each_expert([&](const ops::ExpertWeights& expert, int64_t begin, int64_t end) {
    w.tasks.push_back(task(gate.row_range(begin, end), input_of(begin, end), expert.w1));
    w.tasks.push_back(task(up.row_range(begin, end), input_of(begin, end), expert.w3));
  });
  w.tasks.push_back(task(gate.row_range(num_rows, all), in, a.bank->shared.w1));
  w.tasks.push_back(task(up.row_range(num_rows, all), in, a.bank->shared.w3));
  table.linear(stream, w.tasks);

  table.swiglu(stream, {gate, gate, up, w.row_weights.get<float>(all), a.swiglu_limit, a.round_to_bf16});
  if (a.quantise) table.fake_quant(stream, {ops::FakeQuant::kE4m3Group32, gate, gate});

  const MatrixView<const float> activated = gate;
  const MatrixView<float> out = dense(w.out.get<float>(all * hidden), all, hidden);
  w.tasks.clear();
  for_each_expert([&](const ops::ExpertWeights& expert, int64_t begin, int64_t end) {
    w.tasks.push_back(task(out.row_range(begin, end), activated.row_range(begin, end), expert.w2));
  });
  w.tasks.push_back(task(out.row_range(num_rows, all), activated.row_range(num_rows, all), a.bank->shared.w2));
  table.linear(stream, w.tasks);
  combine(stream, a.out.f32(), out, w.rows.get<int32_t>(num_rows), a.experts.cols, a.round_to_bf16);
}

}  // namespace

void fill_experts(ops::OpTable& table) {
  table.prepare_experts = [](Stream&, ops::ExpertBank&) {};  // the packed weights are all that is needed
  table.experts = experts_op;
}

}  // namespace deepinfer::cpu
