#include "gpu/goals.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace deepinfer::bench {
namespace {

struct Levels {
  double bronze, silver, gold;
};

class GoalList {
 public:
  explicit GoalList(const Results& results) : r_(results) {}

  void at_least(const char* stage, const std::string& name, double value, Levels l) {
    if (std::isfinite(value) && value > 0) goals.push_back({stage, name, value, l.bronze, l.silver, l.gold, true});
  }
  void at_most(const char* stage, const std::string& name, double value, Levels l) {
    if (std::isfinite(value) && value > 0) goals.push_back({stage, name, value, l.bronze, l.silver, l.gold, false});
  }
  // Floor over time of the row; NaN if it was not measured.
  double efficiency(const std::string& section, const std::string& name, int64_t rows) const {
    const KernelRow* row = r_.find(section, name, rows);
    return row == nullptr ? nan_ : row->efficiency(r_.ceilings);
  }
  double times_floor(const std::string& section, const std::string& name, int64_t rows) const {
    return 1 / efficiency(section, name, rows);
  }
  double us(const std::string& section, const std::string& name, int64_t rows) const {
    const KernelRow* row = r_.find(section, name, rows);
    return row == nullptr ? nan_ : row->timing.us;
  }
  double tflops(const std::string& section, const std::string& name, int64_t rows) const {
    const KernelRow* row = r_.find(section, name, rows);
    return row == nullptr ? nan_ : row->tflops();
  }
  // Of a section's rows of this size: floors together over times together, and the peer's times over ours.
  double sum_efficiency(const std::string& section, int64_t rows) const {
    double floors = 0, times = 0;
    for (const KernelRow& row : r_.rows) {
      if (row.section != section || row.rows != rows || row.timing.us <= 0) continue;
      floors += row.floor_us(r_.ceilings), times += row.timing.us;
    }
    return times > 0 ? floors / times : nan_;
  }
  double sum_speedup(const std::string& section, int64_t rows) const {
    double peers = 0, times = 0;
    for (const KernelRow& row : r_.rows) {
      if (row.section != section || row.rows != rows || row.timing.us <= 0 || row.peer_us <= 0) continue;
      peers += row.peer_us, times += row.timing.us;
    }
    return times > 0 ? peers / times : nan_;
  }
  const ComposedRow* composed(const std::string& name, int64_t rows, int64_t context) const {
    for (const ComposedRow& row : r_.composed) {
      if (row.name == name && row.rows == rows && row.context == context && row.missing.empty()) return &row;
    }
    return nullptr;
  }
  const Results& results() const { return r_; }

  std::vector<Goal> goals;

 private:
  static constexpr double nan_ = std::numeric_limits<double>::quiet_NaN();
  const Results& r_;
};

// The least of the values; NaN if any is, so that a goal over several rows waits for all.
double worst(std::initializer_list<double> values, bool more_is_better) {
  double out = *values.begin();
  for (const double v : values) {
    if (std::isnan(v)) return v;
    out = more_is_better ? std::min(out, v) : std::max(out, v);
  }
  return out;
}

void harness(GoalList& g) {
  double spread = 0;
  for (const KernelRow& row : g.results().rows) spread = std::max(spread, row.timing.spread);
  g.at_most("0", "two repetitions within, the widest row, %", 100 * spread, {5, 3, 2});
}

void dense(GoalList& g) {
  const auto all = [&](auto&& of) { return worst({of(1), of(8), of(64)}, true); };
  g.at_least("4", "dense, 1 to 64 rows, efficiency", all([&](int64_t n) { return g.sum_efficiency("linear", n); }),
             {0.50, 0.65, 0.80});
  g.at_least("4", "dense, 1 to 64 rows, times cuBLAS BF16", all([&](int64_t n) { return g.sum_speedup("linear", n); }),
             {1.1, 1.4, 1.7});
  g.at_least("5", "dense, 256 rows, efficiency", g.sum_efficiency("linear", 256), {0.40, 0.55, 0.70});
  g.at_least("6", "dense, 4096 rows, efficiency", g.sum_efficiency("linear", 4096), {0.60, 0.75, 0.88});
  g.at_least("6", "dense, 4096 rows, times cuBLAS BF16", g.sum_speedup("linear", 4096), {0.8, 0.92, 1.0});
}

void experts(GoalList& g) {
  const auto e = [&](int64_t n) { return g.efficiency("experts", "384 experts, uniform", n); };
  g.at_least("7", "experts, 1 row, efficiency", e(1), {0.35, 0.50, 0.65});
  g.at_least("7", "experts, 8 to 256 rows, efficiency", worst({e(8), e(64), e(256)}, true), {0.45, 0.60, 0.78});
  g.at_least("7", "experts, 6 x 256 rows, efficiency", g.efficiency("experts", "6 experts x 256 rows", 256),
             {0.40, 0.55, 0.70});
  g.at_least("8", "experts, 4096 and 16384 rows, efficiency", worst({e(4096), e(16384)}, true), {0.40, 0.55, 0.70});
}

void attention_and_indexer(GoalList& g) {
  g.at_least("9", "attention, 256 rows, efficiency", g.efficiency("attention", "decode", 256), {0.25, 0.40, 0.55});
  g.at_most("9", "attention, 1 row, us", g.us("attention", "decode", 1), {20, 12, 8});
  g.at_least("9", "attention, prefill, TFLOP/s", g.tflops("attention", "prefill", 4096), {250, 400, 520});
  g.at_least("10", "indexer, 128k, 64 rows, efficiency",
             worst({g.efficiency("indexer", "full2, 128k", 64), g.efficiency("indexer", "full1, 128k", 64)}, true),
             {0.40, 0.60, 0.75});
  g.at_least("10", "indexer, prefill 64k, TFLOP/s", g.tflops("indexer", "prefill 64k, ratio 2", 65536),
             {250, 400, 520});
}

// The peer's times over ours, geometric mean over 8k, 64k and 128k scores and 1, 8 and 64 rows; NaN if one is absent.
double top_k_speedup(const GoalList& g, const std::string& suffix) {
  double sum = 0;
  int count = 0;
  for (const char* scores : {"8k", "64k", "128k"}) {
    for (const int64_t n : {1, 8, 64}) {
      const std::string name = fmt::format("top-k 512 of {}", scores);
      const KernelRow* ours = g.results().find("top_k", name + suffix, n);
      const KernelRow* peer = g.results().find("top_k", name, n);
      if (ours == nullptr || peer == nullptr || peer->peer_us <= 0) return std::numeric_limits<double>::quiet_NaN();
      sum += std::log(peer->peer_us / ours->timing.us), ++count;
    }
  }
  return std::exp(sum / count);
}

void top_k(GoalList& g) {
  g.at_least("11", "top-k 512, times torch.topk, without maxima", top_k_speedup(g, ""), {3, 6, 10});
  g.at_least("11", "top-k 512, times torch.topk, with maxima", top_k_speedup(g, ", maxima"), {3, 6, 10});
  g.at_least("11", "top-k 512 of 128k, 256 rows, efficiency", g.efficiency("top_k", "top-k 512 of 128k", 256),
             {0.25, 0.45, 0.65});
  g.at_least("11", "the same with maxima", g.efficiency("top_k", "top-k 512 of 128k, maxima", 256), {0.25, 0.45, 0.65});
}

void small_ops(GoalList& g) {
  const auto mhc = [&](int64_t n) { return g.us("mhc", "boundary", n); };
  g.at_most("12", "mHC boundary, 1 to 64 rows, us", worst({mhc(1), mhc(8), mhc(64)}, false), {8, 5, 3});
  g.at_least("12", "mHC boundary, 4096 rows, efficiency", g.efficiency("mhc", "boundary", 4096), {0.50, 0.70, 0.85});
  g.at_most("13", "Engram, 64 rows, times the floor", g.times_floor("engram", "Engram", 64), {2.0, 1.5, 1.25});
  g.at_most("14", "head and sample, 1 row, times the floor", g.times_floor("head", "head, sample", 1),
            {1.6, 1.3, 1.15});
  g.at_most("14", "head and sample, 256 rows, times the floor", g.times_floor("head", "head, sample", 256),
            {2.0, 1.6, 1.3});
  g.at_most("14", "sampling, top-k 50, top-p, 256 rows, us", g.us("head", "sample, top-k 50, top-p", 256),
            {400, 200, 100});
  const KernelRow* sampling = g.results().find("head", "sample, top-k 50, top-p", 256);
  if (sampling != nullptr && sampling->peer_us > 0) {
    g.at_least("14", "the same, times a sorting path", sampling->peer_us / sampling->timing.us, {4, 8, 15});
  }
}

void layers(GoalList& g) {
  const auto reuse = [&](int64_t n) {
    const double a = g.times_floor("layers", "reuse2", n);
    const KernelRow* b = g.results().find("layers", "reuse1", n);
    return b == nullptr ? a : std::max(a, 1 / b->efficiency(g.results().ceilings));
  };
  g.at_most("15", "reuse layer, 1 row, times the floor", reuse(1), {3.0, 2.1, 1.6});
  g.at_most("15", "reuse layer, 8 rows, times the floor", reuse(8), {2.4, 1.8, 1.45});
  g.at_most("15", "reuse layer, 64 rows, times the floor", reuse(64), {2.2, 1.7, 1.35});
  g.at_most("15", "reuse layer, 256 rows, times the floor", reuse(256), {2.4, 1.8, 1.45});
  g.at_most("15", "reuse layer, prefill 4096, times the floor", reuse(4096), {2.6, 1.9, 1.5});
  g.at_most("15", "reuse layer, prefill 16384, times the floor", reuse(16384), {2.6, 1.9, 1.5});
  if (const KernelRow* row = g.results().find("layers", "reuse2", 1)) {
    g.at_most("15", "kernels of a reuse layer", row->timing.kernels, {24, 16, 10});
  }
}

void composed(GoalList& g) {
  if (const ComposedRow* row = g.composed("decode", 1, 8192)) {
    g.at_most("16", "composed step, 1 sequence at 8k, ms", row->ms, {9.0, 6.4, 4.9});
  }
  if (const ComposedRow* row = g.composed("decode", 64, 131072)) {
    g.at_most("16", "composed step, 64 sequences at 128k, ms", row->ms, {100, 77, 61});
  }
  if (const ComposedRow* row = g.composed("prefill", 16384, 16384)) {
    g.at_least("16", "composed prefill, 16k chunk, tokens/s", 16384 / row->ms * 1e3, {17000, 23000, 29000});
  }
}

void host(GoalList& g) {
  double idle = 0;
  for (const EngineRow& row : g.results().engine) {
    if (row.sequences <= 64) idle = std::max(idle, row.idle_us);
  }
  g.at_most("17", "card idle between steps, up to 64 sequences, us", idle, {100, 30, 10});
  double allocations = 0;
  for (const ScheduleRow& row : g.results().schedule) {
    const Levels levels = row.sequences <= 256 ? Levels{300, 100, 30} : Levels{1200, 400, 120};
    g.at_most("17", fmt::format("schedule, {} sequences, us", row.sequences), row.p50_us, levels);
    allocations = row.allocations < 0 ? -1 : std::max(allocations, row.allocations);
  }
  if (g.results().schedule.empty() || allocations < 0) return;
  g.goals.push_back({"17", "heap allocations of a step, scheduler", allocations, 64, 4, 0, false});
}

void drafts(GoalList& g) {
  const ComposedRow* plain = g.composed("decode", 1, 8192);
  const ComposedRow* verify = g.composed("verify", 6, 8192);
  if (plain == nullptr || verify == nullptr) return;
  g.at_most("19", "step of 1 + 5 rows over a plain one", verify->ms / plain->ms, {4.0, 3.2, 2.7});
}

void masks(GoalList& g) {
  const KernelRow* without = g.results().find("head", "sample, top-k 50, top-p", 64);
  const KernelRow* with = g.results().find("head", "sample, masked half", 64);
  const ComposedRow* step = g.composed("decode", 64, 8192);
  if (without == nullptr || with == nullptr || step == nullptr) return;
  // At least a number above none, so that no time at all still shows.
  const double added = std::max(1e-3, with->timing.us - without->timing.us);
  g.at_most("14", "masks on 32 rows of 64, % of a step", added * 1e-3 / step->ms * 100, {5, 2, 0.5});
}

}  // namespace

std::vector<Goal> goals_of(const Results& results) {
  GoalList list(results);
  harness(list);
  dense(list);
  experts(list);
  attention_and_indexer(list);
  top_k(list);
  small_ops(list);
  layers(list);
  masks(list);
  composed(list);
  host(list);
  drafts(list);
  return std::move(list.goals);
}

}  // namespace deepinfer::bench
