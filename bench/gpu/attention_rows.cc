// Attention over random caches.
#include <algorithm>
#include <cmath>
#include <random>

#include "base/number_formats.h"
#include "gpu/caches.h"
#include "gpu/reference.h"
#include "gpu/sections.h"
#include "gpu/shapes.h"

namespace deepinfer::bench {
namespace {

using namespace shape;

struct AttentionCase {
  Caches caches;
  Activation q, out;
  DeviceValues<int32_t> selected, num_selected;
  DeviceValues<float> sink;
  int64_t n = 0;

  AttentionCase(Card& card, Caches made, int64_t tokens) : caches(std::move(made)), n(tokens) {
    q = card.random_activation(n, kHeads * kHeadDim);
    out = card.poisoned_activation(n, kHeads * kHeadDim);
    sink = card.constant(kHeads, 0.5f);
    std::mt19937_64 random(9);
    const std::vector<int64_t> positions = card.download(caches.positions.data(), n);
    std::vector<int32_t> rows, counts;
    for (const int64_t p : positions) {
      const int64_t visible = (p + 1) / 2, count = std::min(visible, kIndexTopK);
      for (int64_t i = 0; i < kIndexTopK; ++i) {
        const int64_t begin = i * visible / std::max<int64_t>(count, 1),
                      end = (i + 1) * visible / std::max<int64_t>(count, 1);
        rows.push_back(i < count ? static_cast<int32_t>(begin + static_cast<int64_t>(random() % (end - begin))) : 0);
      }
      counts.push_back(static_cast<int32_t>(count));
    }
    selected = card.upload(rows);
    num_selected = card.upload(counts);
  }
  ops::AttentionArgs args() const {
    const int64_t tokens = caches.positions.size();
    return {.out = out.all(),
            .q = q.all(),
            .positions = caches.positions.data(),
            .window = caches.window.tables(),
            .window_size = kWindow,
            .compressed = caches.latent[1].tables(),
            .selected = selected.matrix(n),
            .num_selected = num_selected.data(),
            .sink = sink.data(),
            .num_heads = kHeads,
            .cosine = caches.cosine.matrix(tokens).row_range(0, n),
            .sine = caches.sine.matrix(tokens).row_range(0, n),
            .round_to_bf16 = true};
  }
};

// Adjacent channels of the last part of a head, as ops::rope.
void rotate(std::vector<float>& head, const float* cosine, const float* sine, bool inverse) {
  for (int64_t pair = 0; pair < kRopeDim / 2; ++pair) {
    float& a = head[kHeadDim - kRopeDim + 2 * pair];
    float& b = head[kHeadDim - kRopeDim + 2 * pair + 1];
    const float s = inverse ? -sine[pair] : sine[pair];
    const float x = a * cosine[pair] - b * s, y = a * s + b * cosine[pair];
    a = round_to_bfloat16(x), b = round_to_bfloat16(y);
  }
}

// Two heads of one token.
std::string check_attention(Card& card, AttentionCase& c) {
  std::mt19937_64 random(std::random_device{}());
  card.poison(c.out.all().data, c.out.bytes());
  const ops::AttentionArgs args = c.args();
  ops::attention(card.stream(), args);
  const auto token = static_cast<int64_t>(random() % c.n);
  const int64_t position = card.download(c.caches.positions.data() + token, 1).front();
  const int32_t count = card.download(c.num_selected.data() + token, 1).front();
  const std::vector<int32_t> selected = card.download(args.selected.row(token), kIndexTopK);
  std::vector<std::vector<float>> keys;
  for (int64_t row = std::max<int64_t>(0, position + 1 - kWindow); row <= position; ++row) {
    keys.push_back(cached_row(card, args.window, token, row));
  }
  for (int32_t i = 0; i < count; ++i) keys.push_back(cached_row(card, args.compressed, token, selected[i]));
  const std::vector<float> all_q = row_of(card, c.q.all(), token), got = row_of(card, c.out.all(), token);
  const std::vector<float> cosine = card.download(args.cosine.row(token), kRopeDim / 2);
  const std::vector<float> sine = card.download(args.sine.row(token), kRopeDim / 2);
  Check check(2e-2);
  for (int64_t head : {static_cast<int64_t>(random() % kHeads), static_cast<int64_t>(random() % kHeads)}) {
    std::vector<float> q(all_q.begin() + head * kHeadDim, all_q.begin() + (head + 1) * kHeadDim);
    rotate(q, cosine.data(), sine.data(), false);
    std::vector<double> scores;
    double largest = -INFINITY;
    for (const std::vector<float>& key : keys) {
      scores.push_back(dot(q.data(), key.data(), kHeadDim) / std::sqrt(double{kHeadDim}));
      largest = std::max(largest, scores.back());
    }
    double sum = std::exp(0.5 - largest);
    std::vector<double> out(kHeadDim, 0.0);
    for (size_t k = 0; k < keys.size(); ++k) {
      const double weight = std::exp(scores[k] - largest);
      sum += weight;
      for (int64_t i = 0; i < kHeadDim; ++i) out[i] += weight * keys[k][i];
    }
    std::vector<float> result;
    for (const double x : out) result.push_back(round_to_bfloat16(static_cast<float>(x / sum)));
    rotate(result, cosine.data(), sine.data(), true);
    for (int64_t i = 0; i < kHeadDim; ++i) check.add(got[head * kHeadDim + i], result[i]);
  }
  return check.text();
}

}  // namespace

void bench_attention(Parts& parts) {
  Card& card = parts.card;
  const std::string absent = missing({{"attention", card.ops().attention != nullptr}});
  const auto measure = [&](const char* name, int64_t n, AttentionCase& c) {
    KernelRow row{.section = "attention", .name = name, .rows = n};
    // Queries and results stay in the cache, or are the previous and the next op's to pay.
    row.bytes = static_cast<double>(n) * (kIndexTopK * kLatentRowBytes + kWindow * kWindowRowBytes);
    row.flops = static_cast<double>(n) * 4.0 * kHeads * kHeadDim * (kIndexTopK + kWindow);
    row.check = check_attention(card, c);
    card.measure(row, 24, [&](int64_t) { ops::attention(card.stream(), c.args()); });
  };
  if (!absent.empty()) {
    card.measure({.section = "attention", .name = "decode", .check = absent}, 0, {});
    return;
  }
  for (const int64_t n : parts.sizes({1, 8, 64, 256})) {
    AttentionCase c(card, Caches::for_decode(card, n, 8192), n);
    measure("decode", n, c);
  }
  for (const int64_t n : parts.sizes({4096})) {
    AttentionCase c(card, Caches::for_prefill(card, n), n);
    measure("prefill", n, c);
  }
}

}  // namespace deepinfer::bench
