#include "gpu/report.h"

#include <fstream>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

namespace deepinfer::bench {

void print_header(const Results& r) { fmt::print("gpu benchmark, {}\n{}, commit {}\n", r.date, r.card, r.commit); }

void print_ceilings(const Results& r) {
  const Ceilings& c = r.ceilings;
  fmt::print("\nceilings\n");
  fmt::print("  read {:.0f} GB/s, copy {:.0f} GB/s (floors use it), BF16 products {:.0f} TFLOP/s{}\n", c.read_gbps,
             c.copy_gbps, c.bf16_tflops, r.no_vendor_gemm.empty() ? "" : " (not measured)");
  fmt::print("  empty kernel in a graph {:.2f} us, launch of a graph of 600 {:.1f} us of host time, gap {:.1f} us\n",
             c.empty_kernel_us, c.graph_launch_us, c.graph_gap_us);
  if (!r.no_vendor_gemm.empty()) fmt::print("  {}\n", r.no_vendor_gemm);
}

void print_rows(const Results& r, size_t first) {
  std::string section;
  for (size_t i = first; i < r.rows.size(); ++i) {
    const KernelRow& row = r.rows[i];
    if (row.section != section) {
      section = row.section;
      fmt::print("\n{:<26}{:>6}{:>10}{:>7}{:>10}{:>7}{:>8}{:>8}{:>6}  {}\n", section, "rows", "us", "+-%", "floor us",
                 "share", "TFLOP/s", "kernels", "peer", "check");
    }
    if (row.is_missing()) {
      fmt::print("{:<26}{}\n", row.name, row.check);
      continue;
    }
    const double floor = row.floor_us(r.ceilings);
    const std::string peer = row.peer_us > 0 ? fmt::format("{:.2f}x", row.peer_us / row.timing.us) : "";
    const std::string rate = row.flops > 0 ? fmt::format("{:.0f}", row.tflops()) : "";
    fmt::print("{:<26}{:>6}{:>10.1f}{:>7.1f}{:>10.1f}{:>7.2f}{:>8}{:>8.1f}{:>6}  {}\n", row.name, row.rows,
               row.timing.us, 100 * row.timing.spread, floor, floor / row.timing.us, rate, row.timing.kernels, peer,
               row.check);
  }
}

void print_composed(const Results& r) {
  if (r.composed.empty()) return;
  fmt::print("\nwhole steps, composed of measured layers\n{:<10}{:>6}{:>9}{:>11}{:>11}{:>9}{:>12}\n", "", "rows",
             "context", "ms", "floor ms", "share", "tokens/s");
  for (const ComposedRow& row : r.composed) {
    if (!row.missing.empty()) {
      fmt::print("{:<10}{:>6}{:>9}  not measured: {}\n", row.name, row.rows, row.context, row.missing);
      continue;
    }
    fmt::print("{:<10}{:>6}{:>9}{:>11.2f}{:>11.2f}{:>9.2f}{:>12.0f}\n", row.name, row.rows, row.context, row.ms,
               row.floor_ms, row.floor_ms / row.ms, static_cast<double>(row.rows) / row.ms * 1e3);
  }
}

void print_goals(const Results& r) {
  fmt::print("\ngoals{:>53}{:>10}{:>9}{:>9}  {}\n", "value", "bronze", "silver", "gold", "level");
  for (const Goal& g : r.goals) {
    fmt::print("{:>2}  {:<44}{:>10.2f}  {} {:>7g}{:>9g}{:>9g}  {}\n", g.stage, g.name, g.value,
               g.more_is_better ? ">=" : "<=", g.bronze, g.silver, g.gold, g.level());
  }
}

Status write_json(const Results& r, const std::string& path) {
  const Ceilings& c = r.ceilings;
  nlohmann::ordered_json json = {{"date", r.date},
                                 {"card", r.card},
                                 {"commit", r.commit},
                                 {"ceilings",
                                  {{"read_gbps", c.read_gbps},
                                   {"copy_gbps", c.copy_gbps},
                                   {"bf16_tflops", c.bf16_tflops},
                                   {"bf16_tflops_measured", r.no_vendor_gemm.empty()},
                                   {"empty_kernel_us", c.empty_kernel_us},
                                   {"graph_launch_us", c.graph_launch_us},
                                   {"graph_gap_us", c.graph_gap_us},
                                   {"clock_before_ghz", c.clock_before_ghz},
                                   {"clock_after_ghz", c.clock_after_ghz}}}};
  for (const KernelRow& row : r.rows) {
    nlohmann::ordered_json one = {{"section", row.section}, {"name", row.name}, {"rows", row.rows}};
    if (!row.is_missing()) {
      one["us"] = row.timing.us;
      one["spread"] = row.timing.spread;
      one["kernels"] = row.timing.kernels;
      one["bytes"] = row.bytes;
      one["flops"] = row.flops;
      one["floor_us"] = row.floor_us(c);
      if (row.peer_us > 0) one["peer"] = row.peer, one["peer_us"] = row.peer_us;
    }
    one["check"] = row.check;
    json["rows"].push_back(one);
  }
  for (const ComposedRow& row : r.composed) {
    json["composed"].push_back({{"name", row.name},
                                {"rows", row.rows},
                                {"context", row.context},
                                {"ms", row.ms},
                                {"floor_ms", row.floor_ms},
                                {"not_measured", row.missing}});
  }
  for (const ScheduleRow& row : r.schedule) {
    json["schedule"].push_back(
        {{"sequences", row.sequences}, {"p50_us", row.p50_us}, {"allocations_a_step", row.allocations}});
  }
  for (const EngineRow& row : r.engine) {
    json["engine"].push_back({{"sequences", row.sequences}, {"step_us", row.step_us}, {"idle_us", row.idle_us}});
  }
  for (const Goal& g : r.goals) {
    json["goals"].push_back({{"stage", g.stage},
                             {"name", g.name},
                             {"value", g.value},
                             {"bronze", g.bronze},
                             {"silver", g.silver},
                             {"gold", g.gold},
                             {"more_is_better", g.more_is_better},
                             {"level", g.level()}});
  }
  std::ofstream file(path);
  file << json.dump(1) << "\n";
  file.close();
  return file.good() ? Status() : io_error("cannot write {}: check that its folder exists and has room", path);
}

Status merge_peers(Results& results, const std::string& path) {
  std::ifstream file(path);
  if (!file)
    return Status(ErrorCode::kNotFound, fmt::format("{}: cannot be read; make it with bench/gpu/peers.py", path));
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
  if (json.is_discarded() || !json.contains("rows")) {
    return invalid_input("{}: not what bench/gpu/peers.py writes", path);
  }
  for (const nlohmann::json& peer : json["rows"]) {
    for (KernelRow& row : results.rows) {
      if (row.peer_us > 0 || row.section != peer.value("section", "") || row.name != peer.value("name", "") ||
          row.rows != peer.value("rows", int64_t{-1})) {
        continue;
      }
      row.peer = peer.value("peer", "");
      row.peer_us = peer.value("us", 0.0);
    }
  }
  return Status();
}

}  // namespace deepinfer::bench
