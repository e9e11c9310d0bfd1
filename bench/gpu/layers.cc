// Layers of every kind as the model calls their ops, and whole steps composed of them: how many layers of a kind the
// model has, times the kind's time, plus twice Engram, plus head and sampling.
#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "gpu/layer_slice.h"
#include "gpu/sections.h"

namespace deepinfer::bench {
namespace {

constexpr int64_t kContexts[] = {8192, 131072};
const std::vector<int64_t> kDecodeRows = {1, 8, 64, 256};
constexpr int64_t kVerifiedRows = 6;  // a token and five drafts; here of as many sequences, which costs the same

std::string context_name(int64_t context) { return context >= 131072 ? "128k" : "8k"; }

// Rows are given by their floor in time, which is put as bytes: it is a sum over parts, some bound by bytes and some by
// operations.
KernelRow row_with_floor(const std::string& section, const std::string& name, int64_t rows, double floor_us,
                         const Ceilings& c) {
  return {.section = section, .name = name, .rows = rows, .bytes = floor_us * 1e-6 * c.bandwidth()};
}

class Composer {
 public:
  Composer(const Results& results, const char* what, int64_t rows, int64_t context)
      : results_(results), out_{what, rows, context, 0, 0, ""} {}
  void add(double count, const std::string& section, const std::string& name) {
    const KernelRow* row = results_.find(section, name, out_.rows);
    if (row == nullptr) {
      out_.missing += (out_.missing.empty() ? "" : ", ") + name;
      return;
    }
    out_.ms += count * row->timing.us * 1e-3;
    out_.floor_ms += count * row->floor_us(results_.ceilings) * 1e-3;
  }
  ComposedRow row() const { return out_; }

 private:
  const Results& results_;
  ComposedRow out_;
};

void decode_layers(Parts& parts, int64_t context, int64_t rows) {
  Card& card = parts.card;
  const Ceilings& c = card.results().ceilings;
  const Caches caches = Caches::for_decode(card, rows, context);
  LayerSlice slice(card, parts.weights, caches, rows, Skew::kUniform);
  const int64_t turns = parts.weights.num_layers();
  for (const LayerKind kind : kLayerKinds) {
    if (context > kContexts[0] && !has_indexer(kind)) continue;  // the context does not enter
    std::string name = name_of(kind);
    if (has_indexer(kind)) name += " " + context_name(context);
    card.measure(row_with_floor("layers", name, rows, slice.layer_floor_us(kind, c), c), turns,
                 [&](int64_t i) { slice.run(kind, i); });
  }
  if (context > kContexts[0]) return;
  card.measure(row_with_floor("engram", "Engram", rows, slice.engram_floor_us(c), c), 4,
               [&](int64_t i) { slice.run_engram(i); });
  card.measure(row_with_floor("head", "head, sample", rows, slice.head_floor_us(c), c), 4,
               [&](int64_t) { slice.run_head(); });
  LayerSlice skewed(card, parts.weights, caches, rows, Skew::kZipf);
  card.measure(row_with_floor("layers", "reuse2, Zipf 0.8", rows, skewed.layer_floor_us(LayerKind::kReuse2, c), c),
               turns, [&](int64_t i) { skewed.run(LayerKind::kReuse2, i); });
}

void prefill_layers(Parts& parts, int64_t tokens) {
  Card& card = parts.card;
  const Ceilings& c = card.results().ceilings;
  const Caches caches = Caches::for_prefill(card, tokens);
  LayerSlice slice(card, parts.weights, caches, tokens, Skew::kUniform);
  for (const LayerKind kind : {LayerKind::kSwa, LayerKind::kFull2, LayerKind::kReuse2}) {
    card.measure(row_with_floor("layers", name_of(kind), tokens, slice.layer_floor_us(kind, c), c), 2,
                 [&](int64_t i) { slice.run(kind, i); });
  }
  card.measure(row_with_floor("engram", "Engram", tokens, slice.engram_floor_us(c), c), 2,
               [&](int64_t i) { slice.run_engram(i); });
}

void compose_step(Results& results, const char* what, int64_t rows, int64_t context) {
  Composer step(results, what, rows, context);
  for (const LayerKind kind : kLayerKinds) {
    std::string name = name_of(kind);
    if (has_indexer(kind)) name += " " + context_name(context);
    step.add(static_cast<double>(layers_of(kind)), "layers", name);
  }
  step.add(2, "engram", "Engram");
  step.add(1, "head", "head, sample");
  results.composed.push_back(step.row());
}

void compose(Results& results) {
  for (const int64_t context : kContexts) {
    for (const int64_t rows : kDecodeRows) compose_step(results, "decode", rows, context);
  }
  compose_step(results, "verify", kVerifiedRows, kContexts[0]);
  for (const int64_t tokens : {4096, 16384}) {
    Composer chunk(results, "prefill", tokens, tokens);
    for (const LayerKind kind : {LayerKind::kSwa, LayerKind::kFull2, LayerKind::kReuse2}) {
      chunk.add(static_cast<double>(layers_of(kind)), "layers", name_of(kind));
    }
    chunk.add(2, "engram", "Engram");
    results.composed.push_back(chunk.row());
  }
}

}  // namespace

void bench_layers(Parts& parts) {
  const ops::OpTable& t = parts.card.ops();
  const std::string absent = missing({{"pack_weight", t.pack_weight != nullptr},
                                      {"linear", t.linear != nullptr},
                                      {"rope", t.rope != nullptr},
                                      {"latents", t.latents != nullptr},
                                      {"compress", t.compress != nullptr},
                                      {"mhc_boundary", t.mhc_boundary != nullptr},
                                      {"mhc_collapse", t.mhc_collapse != nullptr},
                                      {"attention", t.attention != nullptr},
                                      {"index_select", t.index_select != nullptr},
                                      {"route", t.route != nullptr},
                                      {"prepare_experts", t.prepare_experts != nullptr},
                                      {"experts", t.experts != nullptr},
                                      {"engram_rows", t.engram_rows != nullptr},
                                      {"engram_apply", t.engram_apply != nullptr},
                                      {"sample", t.sample != nullptr}});
  if (!absent.empty()) {
    parts.card.measure({.section = "layers", .name = "all kinds", .check = absent}, 0, {});
    return;
  }
  parts.weights.make_all();
  for (const int64_t context : kContexts) {
    for (const int64_t rows : parts.sizes(kDecodeRows)) decode_layers(parts, context, rows);
  }
  if (!parts.is_quick) decode_layers(parts, kContexts[0], kVerifiedRows);
  for (const int64_t tokens : parts.sizes({4096, 16384})) {
    if (!parts.is_quick || tokens == 4096) prefill_layers(parts, tokens);
  }
  compose(parts.card.results());
}

}  // namespace deepinfer::bench
