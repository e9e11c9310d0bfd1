// What stands between the large ops: the residual streams' boundary, and sampling by itself.
#include <algorithm>
#include <cmath>
#include <random>

#include "gpu/reference.h"
#include "gpu/sections.h"
#include "gpu/shapes.h"
#include "ops/sampling.h"

namespace deepinfer::bench {
namespace {

using namespace shape;

struct BoundaryCase {
  Activation streams, y, out, quantised;
  DeviceValues<float> pre, post, mix, norm;
  int64_t n;

  BoundaryCase(Card& card, int64_t rows) : n(rows) {
    streams = card.random_activation(n, kStreams * kHidden);
    y = card.random_activation(n, kHidden);
    out = card.poisoned_activation(n, kHidden);
    quantised = card.poisoned_activation(n, kHidden);
    pre = card.constant(n * kStreams, 0.4f);
    post = card.constant(n * kStreams, 0.7f);
    mix = card.constant(n * kStreams * kStreams, 0.25f);
    norm = card.constant(kHidden, 1.0f);
  }
  ops::MhcBoundaryArgs args(const MhcPart& part) const {
    return {.weights = part.view(),
            .coefficients = {pre.matrix(n), post.matrix(n), mix.matrix(n)},
            .streams = streams.all(),
            .y = y.all(),
            .out = out.all(),
            .quantised = quantised.all(),
            .norm_weight = norm.data(),
            .round_to_bf16 = true};
  }
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// One token: the streams, the sublayer's input and the mix by which the next one collapses them.
std::string check_boundary(Card& card, BoundaryCase& c, const MhcPart& part, const ops::WeightSource& fn) {
  std::mt19937_64 random(std::random_device{}());
  const auto token = static_cast<int64_t>(random() % c.n);
  const std::vector<float> before = row_of(card, c.streams.all(), token), y = row_of(card, c.y.all(), token);
  card.poison(c.out.all().data, c.out.bytes());
  ops::mhc_boundary(card.stream(), c.args(part));
  const std::vector<float> after = row_of(card, c.streams.all(), token), u = row_of(card, c.out.all(), token);
  const std::vector<float> pre = card.download(c.pre.data() + token * kStreams, kStreams);
  Check check(1e-2);
  std::vector<double> sum(kHidden, 0.0);
  double square = 0, mean_u = 0;
  for (int64_t i = 0; i < kHidden; ++i) {
    double mixed = 0;
    for (int64_t s = 0; s < kStreams; ++s) mixed += 0.25 * before[s * kHidden + i];
    for (int64_t s = 0; s < kStreams; ++s) {
      check.add(after[s * kHidden + i], 0.7f * y[i] + mixed);
      sum[i] += 0.4f * after[s * kHidden + i];
      square += static_cast<double>(after[s * kHidden + i]) * after[s * kHidden + i];
    }
    mean_u += sum[i] * sum[i] / kHidden;
  }
  for (int64_t i = 0; i < kHidden; ++i) check.add(u[i], sum[i] / std::sqrt(mean_u));
  const std::vector<float> weight = decoded_rows(card, fn, 0, 24);
  const double scale = 1 / std::sqrt(square / (kStreams * kHidden));
  for (int64_t s = 0; s < kStreams; ++s) {
    const double m = dot(after.data(), &weight[s * kStreams * kHidden], kStreams * kHidden) * scale;
    check.add(pre[s], sigmoid(m * 0.05f) + kHcEps);
  }
  return check.text();
}

void bench_sampling(Parts& parts) {
  Card& card = parts.card;
  const std::string absent = missing({{"sample", card.ops().sample != nullptr}});
  struct Way {
    const char* name;
    ops::SampleRow row;
  };
  const Way ways[] = {
      {"sample, greedy", {.temperature = 0}},
      {"sample, no filter", {}},
      {"sample, top-k 50", {.top_k = 50}},
      {"sample, top-k 50, top-p", {.top_p = 0.95, .top_k = 50}},
      {"sample, top-p", {.top_p = 0.95}},
      {"sample, masked half", {.top_p = 0.95, .top_k = 50, .mask_row = 0}},  // every second row has a mask
  };
  constexpr int64_t kMaskWords = kVocabulary / 32;
  const DeviceValues<uint32_t> masks = card.values<uint32_t>(256 * kMaskWords);
  card.fill(masks.data(), masks.bytes(), cuda::RandomKind::kE2m1);
  constexpr int64_t kPool = 768;  // rows, 400 MB
  const DeviceValues<float> logits = card.values<float>(kPool * kVocabulary);
  card.fill(logits.data(), logits.bytes(), cuda::RandomKind::kF32);
  const DeviceValues<int32_t> tokens = card.values<int32_t>(256);
  for (const Way& way : ways) {
    std::vector<ops::SampleRow> rows(256, way.row);
    for (size_t i = 0; i < rows.size(); ++i) {
      // The logits deviate by 0.02; divided by this they deviate by 2.5.
      if (rows[i].temperature > 0) rows[i].temperature = 0.008;
      rows[i].key = 1000 + i;
      rows[i].position = static_cast<int64_t>(i);
      if (way.row.mask_row == 0) rows[i].mask_row = i % 2 == 0 ? static_cast<int32_t>(i) : -1;
    }
    const DeviceValues<ops::SampleRow> on_card = card.upload(rows);
    for (const int64_t n : parts.sizes({1, 64, 256})) {
      KernelRow row{.section = "head", .name = way.name, .rows = n, .check = absent};
      row.bytes = 4.0 * kVocabulary * static_cast<double>(n);
      card.measure(row, std::min<int64_t>(kPool / n, 64), [&](int64_t i) {
        ops::sample(card.stream(), {tokens.data(),
                                    {logits.data() + i * n * kVocabulary, n, kVocabulary, kVocabulary},
                                    on_card.data(),
                                    masks.matrix(256)});
      });
    }
  }
}

}  // namespace

void bench_mhc(Parts& parts) {
  Card& card = parts.card;
  const std::string absent = missing(
      {{"pack_weight", card.ops().pack_weight != nullptr}, {"mhc_boundary", card.ops().mhc_boundary != nullptr}});
  if (!absent.empty()) {
    card.measure({.section = "mhc", .name = "boundary", .check = absent}, 0, {});
    return;
  }
  std::vector<MhcPart> sets;
  std::vector<ops::WeightSource> sources;
  for (int i = 0; i < 64; ++i) {  // 126 MB: more than the cache holds
    sources.push_back(parts.weights.random().next(ops::WeightFormat::kF32, 24, kStreams * kHidden));
    sets.push_back({ops::pack_weight(card.stream(), sources.back()), card.constant(3, 0.05f), card.constant(24, 0.0f)});
  }
  for (const int64_t n : parts.sizes({1, 8, 64, 256, 4096})) {
    BoundaryCase c(card, n);
    KernelRow row{.section = "mhc", .name = "boundary", .rows = n};
    row.bytes = 102.4e3 * static_cast<double>(n) + kMhcBytes;
    row.flops = 0;  // fp32 on the cores, far from their limit
    row.check = check_boundary(card, c, sets.front(), sources.front());
    card.measure(row, 64, [&](int64_t i) { ops::mhc_boundary(card.stream(), c.args(sets[i])); });
  }
}

void bench_head(Parts& parts) { bench_sampling(parts); }

}  // namespace deepinfer::bench
