#include "gpu/gpu_bench.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>

#include <fmt/core.h>

#include "backends/cuda/cuda_device.h"
#include "gpu/goals.h"
#include "gpu/report.h"
#include "gpu/sections.h"

namespace deepinfer::bench {
namespace {

std::string date() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", std::gmtime(&now));
  return std::string(text) + " UTC";
}

struct Section {
  const char* name;
  void (*run)(Parts&);
};
constexpr Section kSections[] = {
    {"linear", bench_linear},   {"experts", bench_experts}, {"attention", bench_attention},
    {"indexer", bench_indexer}, {"top_k", bench_top_k},     {"mhc", bench_mhc},
    {"head", bench_head},       {"layers", bench_layers},   {"host", bench_host},
};

void finish(const GpuBenchOptions& options, Results& results, int& exit_status) {
  const auto report = [&](const Status& status) {
    if (status.ok()) return;
    fmt::print(stderr, "{}\n", status.message());
    exit_status = 2;
  };
  if (!options.peers_path.empty()) report(merge_peers(results, options.peers_path));
  results.goals = goals_of(results);
  print_composed(results);
  print_host(results);
  if (!options.json_path.empty()) report(write_json(results, options.json_path));
  print_goals(results);
}

}  // namespace

const std::vector<std::string>& gpu_bench_sections() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out = {"ceilings"};
    for (const Section& section : kSections) out.emplace_back(section.name);
    return out;
  }();
  return names;
}

int run_gpu_bench(const GpuBenchOptions& options) {
  Result<std::unique_ptr<Device>> device = make_cuda_device({.memory_utilization = 0.95});
  if (!device.ok()) {
    fmt::print(stderr, "{}\n", device.status().message());
    return 2;
  }
  Card card(std::move(device).value(), options.is_quick ? Card::Options{5, 0.05, 2000, 0} : Card::Options{});
  Results& results = card.results();
  results.date = date();
  results.card = card.device().description();
  results.commit = options.commit;
  print_header(results);

  Result<std::unique_ptr<cuda::VendorGemm>> vendor = cuda::VendorGemm::load(card.device());
  if (!vendor.ok()) results.no_vendor_gemm = vendor.status().message();
  SliceWeights weights(card);
  if (options.is_quick) weights.limit_layers(4);
  Parts parts{card,
              weights,
              vendor.ok() ? vendor.value().get() : nullptr,
              options.is_quick,
              options.most_rows,
              options.model,
              options.allocations};
  results.ceilings.clock_before_ghz = cuda::clock_ghz(card.stream());
  measure_ceilings(parts);
  print_ceilings(results);
  std::fflush(stdout);  // what follows may end the program

  const auto begin = std::chrono::steady_clock::now();
  for (const Section& section : kSections) {
    const bool is_asked =
        options.only.empty() || std::find(options.only.begin(), options.only.end(), section.name) != options.only.end();
    if (!is_asked) continue;
    const size_t first = results.rows.size();
    section.run(parts);
    print_rows(results, first);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    fmt::print("{:.1f} s so far\n", seconds.count());
    std::fflush(stdout);
  }
  results.ceilings.clock_after_ghz = cuda::clock_ghz(card.stream());
  fmt::print("\nclock {:.2f} GHz before, {:.2f} GHz after\n", results.ceilings.clock_before_ghz,
             results.ceilings.clock_after_ghz);
  int exit_status =
      std::any_of(results.rows.begin(), results.rows.end(), [](const KernelRow& r) { return r.is_wrong(); }) ? 1 : 0;
  finish(options, results, exit_status);
  return exit_status;
}

}  // namespace deepinfer::bench
