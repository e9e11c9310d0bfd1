// The experts of a layer, the shared one included: all 384 at decode and prefill sizes, and one rank of a wide
// deployment (6 experts that get 256 rows each).
#include <algorithm>
#include <cmath>
#include <random>

#include <fmt/format.h>

#include "base/number_formats.h"
#include "gpu/reference.h"
#include "gpu/routing.h"
#include "gpu/sections.h"
#include "gpu/shapes.h"

namespace deepinfer::bench {
namespace {

using namespace shape;

// A small bank whose raw weights are known: what experts() gives for one token, a band of outputs.
class ExpertsReference {
 public:
  explicit ExpertsReference(Parts& parts) : card_(parts.card) {
    RandomWeights& random = parts.weights.random();
    for (int64_t e = 0; e <= kTopK; ++e) {  // the last is the shared expert
      const auto format = e < kTopK ? ops::WeightFormat::kMxfp4 : ops::WeightFormat::kF8Tile32;
      Sources& s = sources_.emplace_back();
      s.w1 = random.next(format, kInner, kHidden);
      s.w2 = random.next(format, kHidden, kInner);
      s.w3 = random.next(format, kInner, kHidden);
      Stream& stream = card_.stream();
      ops::ExpertWeights packed{ops::pack_weight(stream, s.w1), ops::pack_weight(stream, s.w2),
                                ops::pack_weight(stream, s.w3)};
      if (e < kTopK) {
        bank.routed.push_back(std::move(packed));
      } else {
        bank.shared = std::move(packed);
      }
    }
    ops::prepare_experts(card_.stream(), bank);
  }

  std::string check(int64_t rows) {
    Activation in = card_.random_activation(rows, kHidden), out = card_.poisoned_activation(rows, kHidden);
    ops::fake_quant(card_.stream(), {ops::FakeQuant::kE4m3Group32, in.all(), in.all()});
    const RoutingDraws draws(card_, 1, rows, kTopK, 4, Skew::kUniform, std::random_device{}());
    ops::experts(card_.stream(),
                 {out.all(), in.all(), draws.experts(0), draws.weights(0), &bank, kSwigluLimit, true, true});
    std::mt19937_64 random(std::random_device{}());
    Check check(1e-2);
    const auto token = static_cast<int64_t>(random() % rows),
               first = static_cast<int64_t>(random() % (kHidden / 32)) * 32;
    const std::vector<float> u = row_of(card_, in.all(), token), got = row_of(card_, out.all(), token);
    const std::vector<int32_t> experts = card_.download(draws.experts(0).row(token), 4);
    const std::vector<float> weights = card_.download(draws.weights(0).row(token), 4);
    std::vector<double> want(32, 0.0);
    for (size_t slot = 0; slot <= 4; ++slot) {
      const int64_t e = slot < 4 ? experts[slot] : kTopK;
      const std::vector<float> inner = activation(sources_[e], u, slot < 4 ? weights[slot] : 1.0f);
      const std::vector<float> w2 = decoded_rows(card_, sources_[e].w2, first, 32);
      for (int64_t o = 0; o < 32; ++o) {
        want[o] += round_to_bfloat16(static_cast<float>(dot(inner.data(), &w2[o * kInner], kInner)));
      }
    }
    for (int64_t o = 0; o < 32; ++o) check.add(got[first + o], want[o]);
    return check.text();
  }

  ops::ExpertBank bank;

 private:
  struct Sources {
    ops::WeightSource w1, w2, w3;
  };

  std::vector<float> activation(const Sources& s, const std::vector<float>& u, float weight) {
    const std::vector<float> w1 = decoded_rows(card_, s.w1, 0, kInner), w3 = decoded_rows(card_, s.w3, 0, kInner);
    std::vector<float> inner(kInner);
    for (int64_t i = 0; i < kInner; ++i) {
      const float gate = round_to_bfloat16(static_cast<float>(dot(u.data(), &w1[i * kHidden], kHidden)));
      const float up = round_to_bfloat16(static_cast<float>(dot(u.data(), &w3[i * kHidden], kHidden)));
      const float g = std::min(gate, kSwigluLimit);
      const float value = g / (1 + std::exp(-g)) * std::clamp(up, -kSwigluLimit, kSwigluLimit) * weight;
      inner[i] = round_to_bfloat16(value);
    }
    quantise(inner);
    return inner;
  }

  Card& card_;
  std::vector<Sources> sources_;
};

// `banks` are taken in turns, with another draw each.
void measure_experts(Parts& parts, const std::string& name, const std::vector<const ops::ExpertBank*>& banks,
                     int64_t num_experts, int64_t rows, Skew skew, const std::string& check) {
  Card& card = parts.card;
  const RoutingDraws draws(card, rows > 1024 ? 4 : 16, rows, num_experts, kTopK, skew, 3);
  Activation in = card.random_activation(rows, kHidden);
  Activation out = card.poisoned_activation(rows, kHidden);
  ops::fake_quant(card.stream(), {ops::FakeQuant::kE4m3Group32, in.all(), in.all()});
  KernelRow row{.section = "experts", .name = name, .rows = rows};
  row.bytes = draws.mean_distinct() * kExpertBytes + kSharedExpertBytes + 4.0 * kHidden * static_cast<double>(rows);
  row.flops = 6.0 * (kTopK + 1) * kHidden * kInner * static_cast<double>(rows);
  row.check = check;
  card.measure(row, 16, [&](int64_t i) {
    ops::experts(card.stream(), {out.all(), in.all(), draws.experts(i), draws.weights(i), banks[i % banks.size()],
                                 kSwigluLimit, true, true});
  });
}

}  // namespace

void bench_experts(Parts& parts) {
  Card& card = parts.card;
  const ops::OpTable& table = card.ops();
  const std::string absent = missing({{"pack_weight", table.pack_weight != nullptr},
                                      {"prepare_experts", table.prepare_experts != nullptr},
                                      {"experts", table.experts != nullptr},
                                      {"fake_quant", table.fake_quant != nullptr}});
  if (!absent.empty()) {
    card.measure({.section = "experts", .name = "384 experts", .check = absent}, 0, {});
    return;
  }
  std::string check;
  {
    ExpertsReference reference(parts);
    for (const int64_t rows : parts.sizes({5, 300})) {
      const std::string one = reference.check(rows);
      if (check.rfind("WRONG", 0) != 0) check = one;
    }
    for (const int64_t rows : parts.sizes({256}))
      measure_experts(parts, "6 experts x 256 rows", {&reference.bank}, kTopK, rows, Skew::kUniform, check);
  }
  std::vector<const ops::ExpertBank*> banks;
  for (int64_t layer = 0; layer < std::min<int64_t>(4, parts.weights.num_layers()); ++layer) {
    banks.push_back(&parts.weights.layer(layer).bank);
  }
  for (const Skew skew : {Skew::kUniform, Skew::kZipf}) {
    for (const int64_t rows : parts.sizes({1, 8, 64, 256, 4096, 16384})) {
      if (parts.is_quick && rows > 4096) continue;
      measure_experts(parts, skew == Skew::kUniform ? "384 experts, uniform" : "384 experts, Zipf 0.8", banks, kExperts,
                      rows, skew, check);
    }
  }
}

}  // namespace deepinfer::bench
