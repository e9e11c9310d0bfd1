#include <numeric>

#include "backends/cuda/kernels.h"
#include "backends/cuda/rig.h"

namespace deepinfer::cuda_test {
namespace {

class CudaRouteTest : public CudaTest {
 protected:
  void check(int64_t rows, int64_t experts, int64_t top_k, const Floats& logits, const Floats& bias, bool normalise) {
    const Tensor card_logits = tensor(ElementType::kF32, rows, experts, logits, experts + 4);
    const OnCard<float> card_bias = upload(bias);
    const OnCard<int32_t> chosen = upload(std::vector<int32_t>(rows * top_k, -7));
    const Tensor weights = poisoned(ElementType::kF32, rows, top_k);
    cuda::route(stream(), {.experts = dense(chosen.data(), rows, top_k),
                           .weights = weights.f32(),
                           .logits = card_logits.f32(),
                           .bias = card_bias.data(),
                           .temperature = 1.25f,
                           .normalise = normalise,
                           .scaling = 1.5f});
    const std::vector<int32_t> got_experts = chosen.values();
    const Floats got = weights.values();
    for (int64_t r = 0; r < rows; ++r) {
      Floats scores(experts);
      for (int64_t e = 0; e < experts; ++e) {
        const float x = logits[r * experts + e] / 1.25f;
        scores[e] = static_cast<float>(std::sqrt(x > 20.0f ? double{x} : std::log1p(std::exp(double{x}))));
      }
      std::vector<int32_t> order(experts);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return scores[a] + bias[a] > scores[b] + bias[b]; });
      order.resize(top_k);
      std::sort(order.begin(), order.end());
      double sum = 0;
      for (int32_t e : order) sum += scores[e];
      for (int64_t i = 0; i < top_k; ++i) {
        EXPECT_EQ(got_experts[r * top_k + i], order[i]) << "row " << r << " of " << rows << ", slot " << i;
        const double want = scores[order[i]] / (normalise ? sum + 1e-20 : 1.0) * 1.5;
        EXPECT_NEAR(got[r * top_k + i], want, 1e-6 * want + 1e-30) << "row " << r << ", slot " << i;
      }
    }
  }
};

TEST_F(CudaRouteTest, ChoosesTheBestByScoreAndBiasAndWeighsByScore) {
  for (auto [experts, top_k] : {std::array<int64_t, 2>{384, 6}, {8, 2}, {33, 33 - 1}, {1024, 8}, {6, 6}}) {
    for (bool normalise : {false, true}) {
      check(57, experts, top_k, random_values(57 * experts, 4), random_values(experts, 0.3f), normalise);
    }
  }
}

TEST_F(CudaRouteTest, TiesGoToTheLowerExpert) {
  Floats logits = random_values(3 * 384);
  for (float& x : logits) x = std::round(x);
  check(3, 384, 6, logits, Floats(384, 0.0f), true);
  check(3, 384, 6, Floats(3 * 384, 0.5f), Floats(384, 0.0f), true);
}

TEST_F(CudaRouteTest, ExtremeLogitsGiveFiniteWeights) {
  Floats logits = random_values(4 * 64, 50);
  for (int64_t e = 0; e < 64; ++e) logits[e] = e == 13 ? -80.0f : -100.0f - static_cast<float>(e);
  check(4, 64, 4, logits, Floats(64, 0.0f), true);
}

// The same tokens, from one to more than one kernel takes, as often as parts that are left behind would show.
TEST_F(CudaRouteTest, WithAGateGivesTheBitsOfTheProductAndTheChoiceForAnyNumberOfTokens) {
  for (auto [experts, hidden, top_k] :
       {std::array<int64_t, 3>{384, 5120, 6}, {384, 4096, 8}, {256, 2048, 8}, {130, 1024, 4}, {16, 64, 2}}) {
    constexpr int64_t kRows = 70;
    std::vector<uint16_t> codes;
    for (float w : random_values(experts * hidden, 0.05f)) codes.push_back(to_bfloat16(w).bits);
    const ops::PackedWeight gate = cuda::pack_weight(
        stream(), {ops::WeightFormat::kBf16, experts, hidden, reinterpret_cast<const std::byte*>(codes.data())});
    const Tensor in = tensor(ElementType::kBf16, kRows, hidden, random_values(kRows * hidden), hidden + 8);
    const OnCard<float> bias = upload(random_values(experts, 0.1f));
    const auto run = [&](int64_t first, int64_t rows, bool with_gate) {
      const OnCard<int32_t> chosen = upload(std::vector<int32_t>(rows * top_k, -7));
      const Tensor weights = poisoned(ElementType::kF32, rows, top_k);
      const Tensor logits = poisoned(ElementType::kF32, rows, experts);
      ops::RouteArgs args{.experts = dense(chosen.data(), rows, top_k),
                          .weights = weights.f32(),
                          .logits = logits.f32(),
                          .bias = bias.data(),
                          .scaling = 1.5f,
                          .gate = &gate,
                          .in = in.view().row_range(first, first + rows),
                          .input_is_bf16 = true};
      if (!with_gate) {
        const ops::LinearTask product = args.product();
        cuda::linear(stream(), {&product, 1});
        args.gate = nullptr;
      }
      cuda::route(stream(), args);
      Floats out = weights.values();
      for (int32_t e : chosen.values()) out.push_back(static_cast<float>(e));
      return out;
    };
    const Floats want = run(0, kRows, false);
    for (int64_t rows : {1, 2, 7, 8, 9, 70, 1, 8}) {
      for (int64_t first = 0; first + rows <= kRows; first += rows + 3) {
        Floats expected;
        for (int64_t of : {int64_t{0}, kRows}) {
          expected.insert(expected.end(), want.begin() + (of + first) * top_k,
                          want.begin() + (of + first + rows) * top_k);
        }
        const std::string what =
            fmt::format("{} rows from {} for {} experts, weights then experts", rows, first, experts);
        expect_same_bits(run(first, rows, true), expected, what, top_k);
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer::cuda_test
