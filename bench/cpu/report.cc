#include "cpu/report.h"

#include <algorithm>
#include <fstream>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

namespace deepinfer::bench {
namespace {

bool is_right(const std::string& check) { return check.rfind("WRONG", 0) != 0; }

struct Goal {
  std::string name;
  double worst;
  double wanted;
  bool more_is_better;
};

void add_to(std::vector<Goal>& goals, const std::string& name, double value, double wanted, bool more_is_better) {
  for (Goal& goal : goals) {
    if (goal.name != name) continue;
    goal.worst = more_is_better ? std::min(goal.worst, value) : std::max(goal.worst, value);
    return;
  }
  goals.push_back({name, value, wanted, more_is_better});
}

std::vector<Goal> goals_of(const CpuReport& report) {
  std::vector<Goal> goals;
  for (const GemvRow& row : report.linear.gemv) {
    if (row.format == "BF16") continue;  // no goal: two or four times the bytes of the others
    if (row.num_tokens == 1)
      add_to(goals, row.set + ": one token, share of a pure read, p50", row.gbps_p50 / row.read_p50, 0.70, true);
    if (row.num_tokens == 4) add_to(goals, row.set + ": four tokens, times the cost of one", row.cost, 1.4, false);
  }
  for (const GemmRow& row : report.linear.gemm) {
    add_to(goals, row.set + ": 64 to 512 tokens, share of the peak", row.gflops / row.peak_gflops, 0.50, true);
  }
  for (const LayerResult& row : report.layers) {
    add_to(goals, row.set + ": a layer for one token, times its floor", row.times_floor(), 1.7, false);
  }
  return goals;
}

}  // namespace

void print_header(const CpuReport& report) {
  fmt::print("cpu benchmark, {}\n{}, {} threads, {:.2f} GHz (dependent additions)\n", report.date, report.cpu_model,
             report.num_threads, report.clock_ghz);
}

void print_ceilings(const CpuReport& report) {
  fmt::print("\nceilings\n{:<28}{:>8}{:>12}{:>12}  unit\n", "", "threads", "p50", "p90");
  for (const CeilingRow& row : report.ceilings) {
    fmt::print("{:<28}{:>8}{:>12.1f}{:>12.1f}  {}\n", row.name, row.num_threads, row.p50, row.p90, row.unit);
  }
}

void print_linear(const CpuReport& report) {
  fmt::print("\nfew tokens, weights from memory; rates of packed weights; 'read' are pure reads between the calls\n");
  fmt::print("{:<12}{:<6}{:>4}{:>7}{:>9}{:>9}{:>10}{:>7}{:>7}{:>7}{:>9}  {}\n", "kernels", "format", "thr", "tokens",
             "GB/s p50", "p90", "read p50", "share", "p90", "cost", "in cache", "check");
  for (const GemvRow& row : report.linear.gemv) {
    const std::string cached = row.cached_gbps > 0 ? fmt::format("{:.1f}", row.cached_gbps) : "";
    fmt::print("{:<12}{:<6}{:>4}{:>7}{:>9.1f}{:>9.1f}{:>10.1f}{:>7.2f}{:>7.2f}{:>7.2f}{:>9}  {}\n", row.set, row.format,
               row.num_threads, row.num_tokens, row.gbps_p50, row.gbps_p90, row.read_p50, row.gbps_p50 / row.read_p50,
               row.gbps_p90 / row.read_p90, row.cost, cached, row.check);
  }
  fmt::print("\nmany tokens; the peak is measured between the calls\n");
  fmt::print("{:<12}{:<6}{:>4}{:>7}{:>11}{:>11}{:>7}  {:<18}{}\n", "kernels", "format", "thr", "tokens", "GFLOP/s",
             "peak", "share", "of", "check");
  for (const GemmRow& row : report.linear.gemm) {
    fmt::print("{:<12}{:<6}{:>4}{:>7}{:>11.1f}{:>11.1f}{:>7.2f}  {:<18}{}\n", row.set, row.format, row.num_threads,
               row.num_tokens, row.gflops, row.peak_gflops, row.gflops / row.peak_gflops, row.peak_name, row.check);
  }
}

void print_layers(const CpuReport& report) {
  if (report.layers.empty()) return;
  fmt::print(
      "\none layer for one token at the released widths; floor: its weights at the rate of pure reads in between\n");
  fmt::print("{:<12}{:>4}{:>9}{:>9}{:>11}{:>10}{:>11}{:>13}{:>8}\n", "kernels", "thr", "experts", "MB read",
             "read GB/s", "floor ms", "layer ms", "attention ms", "floors");
  for (const LayerResult& row : report.layers) {
    fmt::print("{:<12}{:>4}{:>9}{:>9.1f}{:>11.1f}{:>10.2f}{:>11.2f}{:>13.2f}{:>8.2f}\n", row.set, row.num_threads,
               row.num_experts, row.weight_bytes * 1e-6, row.read_gbps, row.floor_ms, row.layer_ms, row.attention_ms,
               row.times_floor());
  }
}

void print_caches(const CpuReport& report) {
  if (report.caches.empty()) return;
  fmt::print(
      "\ncached rows of one token's attention (64 heads of 512) and index selection (32 heads of 128), ns a row\n");
  fmt::print("{:<12}{:<6}{:>4}{:>10}{:>14}{:>12}{:>14}\n", "kernels", "rows", "thr", "bytes", "attention ns",
             "key bytes", "selection ns");
  for (const CacheResult& row : report.caches) {
    fmt::print("{:<12}{:<6}{:>4}{:>10}{:>14.1f}{:>12}{:>14.1f}\n", row.set, row.format, row.num_threads,
               row.attention_row_bytes, row.attention_ns, row.index_row_bytes, row.index_ns);
  }
}

void print_goals(const CpuReport& report) {
  fmt::print("\ngoals, the worst row of each\n");
  for (const Goal& goal : goals_of(report)) {
    const bool is_met = goal.more_is_better ? goal.worst >= goal.wanted : goal.worst <= goal.wanted;
    fmt::print("{:<60}{:>7.2f}  {} {:.2f}  {}\n", goal.name, goal.worst, goal.more_is_better ? ">=" : "<=", goal.wanted,
               is_met ? "met" : "not met");
  }
}

Status write_json(const CpuReport& report, const std::string& path) {
  nlohmann::ordered_json json = {{"date", report.date},
                                 {"cpu_model", report.cpu_model},
                                 {"num_threads", report.num_threads},
                                 {"clock_ghz", report.clock_ghz}};
  for (const CeilingRow& row : report.ceilings) {
    json["ceilings"].push_back(
        {{"name", row.name}, {"unit", row.unit}, {"threads", row.num_threads}, {"p50", row.p50}, {"p90", row.p90}});
  }
  for (const GemvRow& row : report.linear.gemv) {
    json["few_tokens"].push_back({{"kernels", row.set},
                                  {"format", row.format},
                                  {"threads", row.num_threads},
                                  {"tokens", row.num_tokens},
                                  {"gbps_p50", row.gbps_p50},
                                  {"gbps_p90", row.gbps_p90},
                                  {"read_gbps_p50", row.read_p50},
                                  {"read_gbps_p90", row.read_p90},
                                  {"cost", row.cost},
                                  {"cached_gbps", row.cached_gbps},
                                  {"check", row.check}});
  }
  for (const GemmRow& row : report.linear.gemm) {
    json["many_tokens"].push_back({{"kernels", row.set},
                                   {"format", row.format},
                                   {"threads", row.num_threads},
                                   {"tokens", row.num_tokens},
                                   {"gflops", row.gflops},
                                   {"peak_gflops", row.peak_gflops},
                                   {"peak", row.peak_name},
                                   {"check", row.check}});
  }
  for (const LayerResult& row : report.layers) {
    json["layers"].push_back({{"kernels", row.set},
                              {"threads", row.num_threads},
                              {"experts", row.num_experts},
                              {"weight_bytes", row.weight_bytes},
                              {"read_gbps_p50", row.read_gbps},
                              {"floor_ms", row.floor_ms},
                              {"layer_ms", row.layer_ms},
                              {"attention_ms", row.attention_ms},
                              {"floors", row.times_floor()}});
  }
  for (const CacheResult& row : report.caches) {
    json["caches"].push_back({{"kernels", row.set},
                              {"format", row.format},
                              {"threads", row.num_threads},
                              {"attention_row_bytes", row.attention_row_bytes},
                              {"attention_ns_a_row", row.attention_ns},
                              {"index_row_bytes", row.index_row_bytes},
                              {"index_ns_a_row", row.index_ns}});
  }
  for (const Goal& goal : goals_of(report)) {
    json["goals"].push_back(
        {{"name", goal.name}, {"worst", goal.worst}, {"wanted", goal.wanted}, {"more_is_better", goal.more_is_better}});
  }
  std::ofstream file(path);
  file << json.dump(1) << "\n";
  file.close();
  return file.good() ? Status() : io_error("cannot write {}: check that its folder exists and has room", path);
}

bool all_right(const CpuReport& report) {
  return std::all_of(report.linear.gemv.begin(), report.linear.gemv.end(),
                     [](const GemvRow& r) { return is_right(r.check); }) &&
         std::all_of(report.linear.gemm.begin(), report.linear.gemm.end(),
                     [](const GemmRow& r) { return is_right(r.check); });
}

}  // namespace deepinfer::bench
