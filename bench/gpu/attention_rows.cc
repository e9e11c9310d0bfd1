// Attention and index selection over random caches.
#include <algorithm>
#include <cmath>
#include <random>

#include <fmt/format.h>

#include "base/number_formats.h"
#include "gpu/caches.h"
#include "gpu/reference.h"
#include "gpu/sections.h"
#include "gpu/shapes.h"

namespace deepinfer::bench {
namespace {

using namespace shape;

// A cached row as numbers.
std::vector<float> cached_row(Card& card, const ops::RowTables& tables, int64_t token, int64_t row) {
  const std::byte* const* blocks = card.download(tables.blocks + token, 1).front();
  const std::byte* block = card.download(blocks + (row >> tables.block_shift), 1).front();
  const int64_t bytes = ops::row_bytes(tables.type, tables.width);
  const int64_t at = tables.offset + (row & ((int64_t{1} << tables.block_shift) - 1)) * bytes;
  const std::vector<uint8_t> raw = card.download(reinterpret_cast<const uint8_t*>(block + at), bytes);
  const bool is_e4m3 = tables.type == ops::RowType::kE4m3Group32;
  const int64_t codes = is_e4m3 ? tables.width : tables.width / 2, group = ops::row_group(tables.type);
  std::vector<float> out(tables.width);
  for (int64_t i = 0; i < tables.width; ++i) {
    const uint8_t scale = raw[codes + i / group];
    const float value = is_e4m3 ? e4m3_to_float(raw[i]) : e2m1_to_float(i % 2 == 0 ? raw[i / 2] & 15 : raw[i / 2] >> 4);
    out[i] = value * (tables.type == ops::RowType::kE2m1Group16 ? e4m3_to_float(scale) : e8m0_to_float(scale));
  }
  return out;
}

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
        const int64_t begin = i * visible / std::max<int64_t>(count, 1), end = (i + 1) * visible / std::max<int64_t>(count, 1);
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
  for (const int64_t n : {1, 8, 64, 256}) {
    AttentionCase c(card, Caches::for_decode(card, n, 8192), n);
    measure("decode", n, c);
  }
  AttentionCase c(card, Caches::for_prefill(card, 4096), 4096);
  measure("prefill", 4096, c);
}

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
    for (const int64_t n : {1, 8, 64, 256}) {
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
  const int64_t tokens = parts.is_quick ? 4096 : 65536;
  IndexCase c(card, Caches::for_prefill(card, tokens), tokens, 2);
  const double keys = static_cast<double>(tokens) / 4;
  measure(parts.is_quick ? "prefill 4k, ratio 2" : "prefill 64k, ratio 2", c, keys, static_cast<double>(tokens) / 2);
}

}  // namespace deepinfer::bench
