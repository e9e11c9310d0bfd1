// Index selection over random caches.
#include <algorithm>
#include <cmath>
#include <random>

#include <fmt/format.h>

#include "gpu/caches.h"
#include "gpu/reference.h"
#include "gpu/sections.h"
#include "gpu/shapes.h"

namespace deepinfer::bench {
namespace {

using namespace shape;

struct IndexCase {
  Caches caches;
  Activation q, weights;
  DeviceValues<int32_t> selected, num_selected, candidates, num_candidates;
  int64_t n, ratio;
  bool builds = false, restricts = false;

  IndexCase(Card& card, Caches made, int64_t tokens, int64_t key_ratio)
      : caches(std::move(made)), n(tokens), ratio(key_ratio) {
    q = card.random_activation(n, kIndexHeads * kIndexDim);
    weights = card.random_activation(n, kIndexHeads);
    selected = card.values<int32_t>(n * kIndexTopK);
    num_selected = card.values<int32_t>(n);
    candidates = card.values<int32_t>(n * kCandidateBlocks);
    num_candidates = card.values<int32_t>(n);
  }
  ops::IndexSelectArgs args() const {
    ops::IndexSelectArgs args{.selected = selected.matrix(n),
                              .num_selected = num_selected.data(),
                              .q = q.all(),
                              .head_weights = weights.all(),
                              .keys = caches.index_keys[ratio - 1].tables(),
                              .positions = caches.positions.data(),
                              .ratio = ratio,
                              .max_visible = caches.context / ratio,
                              .num_heads = kIndexHeads,
                              .top_k = kIndexTopK};
    if (builds || restricts) {
      args.candidate_block = kCandidateBlock;
      args.build_candidates = builds;
      args.candidates = candidates.matrix(n);
      args.num_candidates = num_candidates.data();
    }
    return args;
  }
};

// One token: no row that was left out scores more than one that was taken, but for what sums round.
std::string check_index(Card& card, IndexCase& c) {
  card.poison(c.selected.data(), c.selected.bytes());
  card.poison(c.num_selected.data(), c.num_selected.bytes());
  const ops::IndexSelectArgs args = c.args();
  ops::index_select(card.stream(), args);
  std::mt19937_64 random(std::random_device{}());
  const auto token = static_cast<int64_t>(random() % c.n);
  const int64_t visible = (card.download(c.caches.positions.data() + token, 1).front() + 1) / c.ratio;
  const int32_t count = card.download(c.num_selected.data() + token, 1).front();
  if (count != std::min(visible, kIndexTopK)) return fmt::format("WRONG: {} rows of {}", count, visible);
  const std::vector<int32_t> rows = card.download(args.selected.row(token), count);
  if (!std::is_sorted(rows.begin(), rows.end())) return "WRONG: rows out of order";
  const std::vector<float> q = row_of(card, c.q.all(), token), weights = row_of(card, c.weights.all(), token);
  std::vector<bool> is_taken(visible, false);
  for (const int32_t row : rows) is_taken[row] = true;
  double least_taken = INFINITY, most_left = -INFINITY, size = 0;
  // Rows next to taken ones and a sample of the others.
  for (int64_t row = 0; row < visible; ++row) {
    if (!is_taken[row] && random() % 16 != 0) continue;
    const std::vector<float> key = cached_row(card, args.keys, token, row);
    double score = 0;
    for (int64_t h = 0; h < kIndexHeads; ++h) {
      score += std::max(0.0, dot(&q[h * kIndexDim], key.data(), kIndexDim)) * weights[h];
    }
    size = std::max(size, std::fabs(score));
    if (is_taken[row]) {
      least_taken = std::min(least_taken, score);
    } else {
      most_left = std::max(most_left, score);
    }
  }
  const double excess = std::max(0.0, most_left - least_taken) / size;
  return fmt::format("{} {:.1e}", excess <= 1e-4 ? "ok" : "WRONG", excess);
}

}  // namespace

void bench_indexer(Parts& parts) {
  Card& card = parts.card;
  const std::string absent = missing({{"index_select", card.ops().index_select != nullptr}});
  if (!absent.empty()) {
    card.measure({.section = "indexer", .name = "decode, 128k", .check = absent}, 0, {});
    return;
  }
  const auto measure = [&](const char* name, IndexCase& c, double keys, double read_keys) {
    KernelRow row{.section = "indexer", .name = name, .rows = c.n};
    row.bytes = read_keys * kIndexRowBytes;
    row.flops = static_cast<double>(c.n) * 2.0 * kIndexHeads * kIndexDim * keys;
    row.check = c.restricts ? "" : check_index(card, c);
    card.measure(row, 16, [&](int64_t) { ops::index_select(card.stream(), c.args()); });
  };
  for (const int64_t context : {int64_t{8192}, int64_t{131072}}) {
    const char* long_names[] = {"full2, 128k", "full1, 128k", "reidx, 128k"};
    const char* short_names[] = {"full2, 8k", "full1, 8k", "reidx, 8k"};
    const char* const* names = context > 8192 ? long_names : short_names;
    for (const int64_t n : parts.sizes({1, 8, 64, 256})) {
      if (parts.is_quick && n == 8) continue;
      IndexCase c(card, Caches::for_decode(card, n, context), n, 2);
      const auto rows = static_cast<double>(n), keys = static_cast<double>(context);
      measure(names[0], c, keys / 2, rows * keys / 2);
      c.ratio = 1, c.builds = true;
      measure(names[1], c, keys, rows * keys);
      c.builds = false, c.restricts = true;
      const double candidates = std::min(keys, double{kCandidateBlocks * kCandidateBlock});
      measure(names[2], c, candidates, rows * candidates);
    }
  }
  for (const int64_t tokens : parts.sizes({parts.is_quick ? 4096 : 65536})) {
    IndexCase c(card, Caches::for_prefill(card, tokens), tokens, 2);
    measure(parts.is_quick ? "prefill 4k, ratio 2" : "prefill 64k, ratio 2", c, static_cast<double>(tokens) / 4,
            static_cast<double>(tokens) / 2);
  }
}

}  // namespace deepinfer::bench
