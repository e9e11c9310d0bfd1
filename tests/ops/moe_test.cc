#include "ops/moe.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "base/number_formats.h"
#include "golden_json.h"
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

TEST(Combine, adds_the_slots_in_order_and_the_shared_expert_last) {
  Random random(2);
  for (const int64_t slots : {0, 1, 3, 6}) {
    constexpr int64_t kTokens = 9, kHidden = 37, kRows = 30;
    const Values outs = random.normals(kRows * kHidden), shared = random.normals(kTokens * kHidden);
    Experts rows;
    for (int64_t i = 0; i < kTokens * slots; ++i) rows.push_back(static_cast<int32_t>(random.between(0, kRows - 1)));
    Values expected;
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t c = 0; c < kHidden; ++c) {
        float sum = 0;
        for (int64_t i = 0; i < slots; ++i) sum += outs[rows[t * slots + i] * kHidden + c];
        expected.push_back(sum + shared[t * kHidden + c]);
      }
    }
    for (const bool round : {false, true}) {
      const Values out = on_every_rig(kTokens, [&](const Rig& rig, int64_t begin, int64_t end) {
        Buffer<float> experts_out(rig, kHidden, outs), s(rig, kHidden, rows_of(shared, kHidden, begin, end));
        Buffer<float> result(rig, end - begin, kHidden);
        const MatrixView<const int32_t> which = {rows.data() + begin * slots, end - begin, slots, slots};
        combine(*rig.stream, {result.view(), experts_out.view(), which, s.view(), round});
        return result.values();
      });
      EXPECT_EQ(first_difference(out, round ? rounded(expected) : expected), -1) << slots << " slots";
    }
  }
}

}  // namespace
}  // namespace deepinfer::ops
