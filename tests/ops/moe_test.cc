#include "ops/moe.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "allocation_counter.h"
#include "base/number_formats.h"
#include "golden_json.h"
#include "ops/quantisers.h"
#include "ops/rigs.h"

namespace deepinfer::ops {
namespace {

using Values = std::vector<float>;
using Experts = std::vector<int32_t>;

struct Problem {
  Values logits, bias;
  int64_t top_k = 1;
  float temperature = 1, scaling = 1;
  bool normalise = true;
  int64_t num_experts() const { return static_cast<int64_t>(bias.size()); }
  int64_t num_tokens() const { return static_cast<int64_t>(logits.size()) / num_experts(); }
};

struct Routing {
  Experts experts;
  Values weights;
};

Routing route_on_every_rig(const Problem& p) {
  const auto run = [&](auto wanted) {
    return on_every_rig(p.num_tokens(), [&](const Rig& rig, int64_t begin, int64_t end) {
      Buffer<float> logits(rig, p.num_experts(), rows_of(p.logits, p.num_experts(), begin, end));
      Buffer<int32_t> experts(rig, end - begin, p.top_k);
      Buffer<float> weights(rig, end - begin, p.top_k);
      route(*rig.stream,
            {experts.view(), weights.view(), logits.view(), p.bias.data(), p.temperature, p.normalise, p.scaling});
      return wanted(experts.values(), weights.values());
    });
  };
  return {run([](Experts experts, Values) { return experts; }), run([](Experts, Values weights) { return weights; })};
}

TEST(Route, gives_the_golden_experts_and_weights) {
  for (const GoldenCase& golden : read_golden_cases("router")) {
    SCOPED_TRACE(golden.name());
    const Problem p{golden.floats("logits"), golden.floats("bias"), golden.integer("top_k"),
                    static_cast<float>(golden.number("temperature")), static_cast<float>(golden.number("scaling"))};
    const Routing routing = route_on_every_rig(p);
    EXPECT_EQ(routing.experts, golden.integers("experts"));
    expect_close(routing.weights, golden.doubles("weights"), p.top_k);
  }
}

TEST(Route, chooses_by_score_and_bias_with_ties_to_the_lower_expert_and_weighs_by_the_score_alone) {
  Random random(1);
  for (int round = 0; round < 40; ++round) {
    Problem p;
    const int64_t experts = random.between(1, 40), tokens = random.between(1, 6);
    p.top_k = random.between(1, experts);
    p.normalise = round % 3 != 0;
    p.scaling = 1.5f;
    for (int64_t i = 0; i < tokens * experts; ++i) p.logits.push_back(static_cast<float>(random.between(-4, 4)));
    for (int64_t e = 0; e < experts; ++e) p.bias.push_back(0.5f * static_cast<float>(random.between(-1, 1)));
    SCOPED_TRACE(testing::Message() << "round " << round << ": top " << p.top_k << " of " << experts);
    const Routing routing = route_on_every_rig(p);
    Experts expected;
    std::vector<double> expected_weights;
    for (int64_t t = 0; t < tokens; ++t) {
      // Equal logits and biases give equal sums, and no two different ones come near each other; in fp32 as the
      // contract.
      std::vector<double> scores;
      std::vector<float> biased;
      for (int64_t e = 0; e < experts; ++e) {
        scores.push_back(std::sqrt(std::log1p(std::exp(static_cast<double>(p.logits[t * experts + e])))));
        biased.push_back(static_cast<float>(scores.back()) + p.bias[e]);
      }
      Experts order(experts);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return biased[a] > biased[b]; });
      order.resize(p.top_k);
      std::sort(order.begin(), order.end());
      double sum = 0;
      for (const int32_t e : order) sum += scores[e];
      expected.insert(expected.end(), order.begin(), order.end());
      for (const int32_t e : order) expected_weights.push_back(scores[e] / (p.normalise ? sum + 1e-20 : 1) * 1.5);
    }
    EXPECT_EQ(routing.experts, expected);
    expect_close(routing.weights, expected_weights, p.top_k);
  }
}

TEST(Route, survives_logits_of_any_size) {
  const Problem p{{-1e30f, -200, -90, 0, 90, 200, 1e30f, 1}, Values(8, 0.0f), 8, 1, 1, false};
  const Routing routing = route_on_every_rig(p);
  expect_close({routing.weights.begin() + 3, routing.weights.begin() + 6},
               {std::sqrt(std::log(2.0)), std::sqrt(90.0), std::sqrt(200.0)}, 1);
  EXPECT_EQ(routing.weights[0], 0.0f);
  EXPECT_NEAR(routing.weights[6] / 1e15f, 1, 1e-6);
}

TEST(Route, with_a_gate_goes_by_the_logits_that_linear_gives) {
  Random random(2);
  constexpr int64_t kTokens = 5, kExperts = 24, kHidden = 96, kTopK = 4;
  const Values x = rounded(random.normals(kTokens * kHidden)), gate = random.normals(kExperts * kHidden, 0.1f);
  const Values bias = random.normals(kExperts, 0.1f);
  const auto run = [&](bool with_gate) {
    return on_every_rig(kTokens, [&](const Rig& rig, int64_t begin, int64_t end) {
      const PackedWeight weight = pack_weight(
          *rig.stream, {WeightFormat::kF32, kExperts, kHidden, reinterpret_cast<const std::byte*>(gate.data())});
      Buffer<float> in(rig, kHidden, rows_of(x, kHidden, begin, end)), logits(rig, end - begin, kExperts);
      Buffer<int32_t> experts(rig, end - begin, kTopK);
      Buffer<float> weights(rig, end - begin, kTopK);
      RouteArgs args{experts.view(), weights.view(), logits.view(), bias.data()};
      args.gate = &weight, args.in = in.view(), args.input_is_bf16 = true;
      if (!with_gate) {
        const LinearTask product = args.product();
        linear(*rig.stream, {&product, 1});
        args.gate = nullptr;
      }
      route(*rig.stream, args);
      Values both = weights.values();
      for (const int32_t expert : experts.values()) both.push_back(static_cast<float>(expert));
      // Row by row, for rows may be computed apart.
      Values out;
      for (int64_t t = 0; t < end - begin; ++t) {
        for (const int64_t first : {t * kTopK, (end - begin + t) * kTopK}) {
          out.insert(out.end(), both.begin() + first, both.begin() + first + kTopK);
        }
      }
      return out;
    });
  };
  EXPECT_EQ(first_difference(run(true), run(false)), -1);
}

// Random experts and tokens that were routed to them.
struct Bank {
  int64_t num_experts, hidden, inner, top_k, num_tokens;
  std::vector<Values> matrices;  // w1, w3, w2 of each expert, the shared one last
  Values in, weights;
  Experts experts;

  Bank(Random& random, int64_t e, int64_t h, int64_t i, int64_t k, int64_t n)
      : num_experts(e), hidden(h), inner(i), top_k(k), num_tokens(n) {
    for (int64_t m = 0; m < 3 * (e + 1); ++m) matrices.push_back(random.normals(h * i, 0.1f));
    in = rounded(random.normals(n * h));
    weights = random.normals(n * k);
    for (int64_t t = 0; t < n; ++t) {
      // Some experts are chosen often, others never.
      Experts chosen(e);
      std::iota(chosen.begin(), chosen.end(), 0);
      while (static_cast<int64_t>(chosen.size()) > k) {
        chosen.erase(chosen.begin() +
                     random.between(static_cast<int64_t>(chosen.size()) / 2, static_cast<int64_t>(chosen.size()) - 1));
      }
      experts.insert(experts.end(), chosen.begin(), chosen.end());
    }
  }

  ExpertBank packed(Stream& stream) const {
    ExpertBank bank;
    for (int64_t e = 0; e <= num_experts; ++e) {
      ExpertWeights& expert = e < num_experts ? bank.routed.emplace_back() : bank.shared;
      const auto pack = [&](int which, int64_t rows, int64_t cols) {
        const Values& matrix = matrices[3 * e + which];
        return pack_weight(stream, {WeightFormat::kF32, rows, cols, reinterpret_cast<const std::byte*>(matrix.data())});
      };
      expert.w1 = pack(0, inner, hidden);
      expert.w3 = pack(1, inner, hidden);
      expert.w2 = pack(2, hidden, inner);
    }
    prepare_experts(stream, bank);
    return bank;
  }
};

Values experts_on_every_rig(const Bank& b, bool quantise, bool round) {
  std::vector<std::pair<Stream*, ExpertBank>> banks;  // rigs share streams
  return on_every_rig(b.num_tokens, [&](const Rig& rig, int64_t begin, int64_t end) {
    if (banks.empty() || banks.back().first != rig.stream) banks.emplace_back(rig.stream, b.packed(*rig.stream));
    Buffer<float> in(rig, b.hidden, rows_of(b.in, b.hidden, begin, end)), out(rig, end - begin, b.hidden);
    Buffer<float> weights(rig, b.top_k, rows_of(b.weights, b.top_k, begin, end));
    Buffer<int32_t> which(rig, b.top_k, rows_of(b.experts, b.top_k, begin, end));
    experts(*rig.stream,
            {out.view(), in.view(), which.view(), weights.view(), &banks.back().second, 1.5f, quantise, round});
    return out.values();
  });
}

// y = matrix . x, summed as ops/linear.h says.
Values product(const Values& matrix, const Values& x, bool round) {
  const int64_t cols = static_cast<int64_t>(x.size());
  Values y;
  for (size_t row = 0; row < matrix.size(); row += cols) {
    float total = 0;
    for (int64_t group = 0; group < cols; group += 32) {
      float sum = 0;
      for (int64_t k = group; k < group + 32; ++k) sum = std::fma(matrix[row + k], x[k], sum);
      total += sum;
    }
    y.push_back(total);
  }
  return round ? rounded(y) : y;
}

// Token by token and expert by expert, with the other ops for what happens in between.
Values experts_one_by_one(const Bank& b, bool quantise, bool round) {
  Stream& stream = *all_rigs().front().stream;
  Values out;
  for (int64_t t = 0; t < b.num_tokens; ++t) {
    const Values u(b.in.begin() + t * b.hidden, b.in.begin() + (t + 1) * b.hidden);
    const auto run = [&](int64_t e, float weight) {
      Values gate = product(b.matrices[3 * e], u, round), up = product(b.matrices[3 * e + 1], u, round);
      const MatrixView<float> activated = dense(gate.data(), 1, b.inner);
      swiglu(stream, {activated, activated, dense(up.data(), 1, b.inner), &weight, 1.5f, round});
      return product(b.matrices[3 * e + 2], quantise ? quantised(FakeQuant::kE4m3Group32, gate) : gate, round);
    };
    Values sum(b.hidden, 0.0f);
    const auto add = [&](const Values& y) {
      for (int64_t c = 0; c < b.hidden; ++c) sum[c] += y[c];
    };
    for (int64_t i = 0; i < b.top_k; ++i) add(run(b.experts[t * b.top_k + i], b.weights[t * b.top_k + i]));
    add(run(b.num_experts, 1.0f));
    for (const float value : round ? rounded(sum) : sum) out.push_back(value);
  }
  return out;
}

TEST(Experts, give_the_bits_of_a_loop_over_tokens_and_slots) {
  Random random(2);
  struct Shape {
    int64_t experts, hidden, inner, top_k, tokens;
  };
  for (const Shape s : {Shape{1, 32, 32, 1, 1},
                        {1, 32, 32, 1, 4},
                        {8, 64, 96, 3, 1},
                        {8, 64, 96, 3, 5},
                        {5, 96, 32, 5, 3},
                        {12, 32, 64, 6, 7}}) {
    const Bank bank(random, s.experts, s.hidden, s.inner, s.top_k, s.tokens);
    for (const bool quantise : {false, true}) {
      for (const bool round : {false, true}) {
        SCOPED_TRACE(testing::Message() << s.tokens << " tokens, top " << s.top_k << " of " << s.experts
                                        << (quantise ? ", quantised" : "") << (round ? ", rounded" : ""));
        const Values expected = experts_one_by_one(bank, quantise, round);
        EXPECT_EQ(first_difference(experts_on_every_rig(bank, quantise, round), expected), -1);
      }
    }
  }
}

TEST(Experts, are_chosen_by_number_weighed_by_slot_and_joined_by_the_shared_one) {
  Random random(3);
  Bank bank(random, 3, 32, 32, 2, 2);
  const Values before = experts_on_every_rig(bank, false, false);
  const auto row = [](const Values& x, int64_t t) { return Values(x.begin() + t * 32, x.begin() + (t + 1) * 32); };
  bank.experts = {0, 1, 1, 2};
  const Values chosen = experts_on_every_rig(bank, false, false);
  for (float& value : bank.matrices[0]) value = 0;  // the first expert says nothing now
  const Values without = experts_on_every_rig(bank, false, false);
  EXPECT_NE(row(without, 0), row(chosen, 0));
  EXPECT_EQ(row(without, 1), row(chosen, 1));
  bank.weights[0] *= 2;  // of the expert that says nothing
  EXPECT_EQ(experts_on_every_rig(bank, false, false), without);
  bank.weights[1] *= 2;
  EXPECT_NE(row(experts_on_every_rig(bank, false, false), 0), row(without, 0));
  for (float& value : bank.matrices[9]) value = 0;  // the shared expert
  EXPECT_NE(row(experts_on_every_rig(bank, false, false), 1), row(without, 1));
  EXPECT_EQ(before.size(), chosen.size());
}

TEST(Experts, allocate_nothing_once_their_buffers_have_grown) {
  Random random(4);
  const Bank bank(random, 6, 64, 32, 2, 12);
  for (const Rig& rig : all_rigs()) {
    // Of several threads, each grows its own buffers in its first task, whenever that comes.
    if (rig.name.find(", 1 threads") == std::string::npos) continue;
    const ExpertBank packed = bank.packed(*rig.stream);
    Buffer<float> in(rig, bank.hidden, bank.in), out(rig, bank.num_tokens, bank.hidden);
    Buffer<float> weights(rig, bank.top_k, bank.weights);
    Buffer<int32_t> which(rig, bank.top_k, bank.experts);
    const auto run = [&](int64_t num_tokens) {
      experts(*rig.stream, {out.view().row_range(0, num_tokens), in.view().row_range(0, num_tokens),
                            which.view().row_range(0, num_tokens), weights.view().row_range(0, num_tokens), &packed,
                            1.5f, true, true});
    };
    run(bank.num_tokens);
    const int64_t before = allocation_count;
    for (const int64_t num_tokens : {1, 12, 5}) run(num_tokens);
    EXPECT_EQ(allocation_count - before, 0) << rig.name;
  }
}

}  // namespace
}  // namespace deepinfer::ops
