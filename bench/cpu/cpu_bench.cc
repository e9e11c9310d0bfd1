#include "cpu/cpu_bench.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <fstream>
#include <memory>

#include <fmt/core.h>

#include "backends/cpu/linear_pack.h"
#include "base/cpu_affinity.h"
#include "cpu/cache_bench.h"
#include "cpu/ceilings.h"
#include "cpu/layer_bench.h"
#include "cpu/linear_bench.h"
#include "cpu/report.h"

namespace deepinfer::bench {
namespace {

// One routed expert's matrix, in each format.
constexpr LinearShape kShapes[] = {
    {ops::WeightFormat::kMxfp4, "MXFP4", 2304, 5120},
    {ops::WeightFormat::kF8Tile32, "FP8", 2304, 5120},
    {ops::WeightFormat::kBf16, "BF16", 2304, 5120},
};

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

std::string date() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", std::gmtime(&now));
  return std::string(text) + " UTC";
}

void measure_reads(ThreadPool& pool, std::span<const std::byte> memory, double seconds, CpuReport& report) {
  constexpr size_t kWindow = 8 << 20;  // 4 MB or more a thread
  const size_t window = std::min(memory.size(), kWindow * static_cast<size_t>(std::max(1, pool.num_threads() / 2)));
  Windows windows;
  size_t at = 0;
  for (double spent = 0.0; spent < seconds || windows.size() < 100;) {
    if (at + window > memory.size()) at = 0;
    const double once = seconds_of([&] { read_memory(pool, memory.subspan(at, window)); });
    windows.add(once);
    spent += once;
    at += window;
  }
  const double bytes = static_cast<double>(window);
  report.ceilings.push_back({"read, 8 streams a thread", "GB/s", pool.num_threads(), windows.rate_p50(bytes) * 1e-9,
                             windows.rate_p90(bytes) * 1e-9});
}

void measure_peaks(ThreadPool& pool, double seconds, CpuReport& report) {
  for (const PeakLoop& loop : peak_loops()) {
    if (!loop.supported()) continue;
    const PeakWindow window(pool, loop);
    Windows windows;
    const double all = seconds_of([&] { window.run(windows); });
    for (int i = 0; i < static_cast<int>(seconds / all) + 20; ++i) window.run(windows);
    report.ceilings.push_back({loop.name, "GFLOP/s", pool.num_threads(), windows.rate_p50(window.operations()) * 1e-9,
                               windows.rate_p90(window.operations()) * 1e-9});
  }
}

void measure_ceilings(const std::vector<ThreadPool*>& pools, const CpuBenchOptions& options, CpuReport& report) {
  const auto bytes = static_cast<size_t>(options.gigabytes * 1e9);
  // Allocated like weights, which matters for the size of pages.
  const int64_t rows = static_cast<int64_t>(bytes / (4096 * 4));
  const ops::PackedWeight weight =
      cpu::allocate_weight({ops::WeightFormat::kF32, rows, 4096, nullptr, nullptr}, rows * 4096 * 4);
  std::memset(weight.data.get(), 1, static_cast<size_t>(weight.bytes));
  const std::span<const std::byte> memory(weight.data.get(), static_cast<size_t>(weight.bytes));
  for (ThreadPool* pool : pools) {
    measure_reads(*pool, memory, options.seconds, report);
    measure_peaks(*pool, options.seconds, report);
  }
}

void measure_caches(const std::vector<const cpu::LinearKernels*>& sets, const std::vector<ThreadPool*>& pools,
                    double seconds, CpuReport& report) {
  for (const cpu::LinearKernels* kernels : sets) {
    for (const ThreadPool* pool : pools) {
      const std::vector<CacheResult> rows =
          bench_caches({.kernels = kernels->name, .num_threads = pool->num_threads(), .seconds = 8 * seconds});
      report.caches.insert(report.caches.end(), rows.begin(), rows.end());
    }
  }
  print_caches(report);
  std::fflush(stdout);
}

void measure_linear(const std::vector<const cpu::LinearKernels*>& sets, const std::vector<ThreadPool*>& pools,
                    const CpuBenchOptions& options, CpuReport& report) {
  for (const cpu::LinearKernels* kernels : sets) {
    for (const LinearShape& shape : kShapes) {
      bench_linear(*kernels, shape, pools, {options.gigabytes * 1e9, options.seconds}, report.linear);
    }
  }
  print_linear(report);
  std::fflush(stdout);
}

}  // namespace

int run_cpu_bench(const CpuBenchOptions& options) {
  CpuReport report;
  report.date = date();
  report.cpu_model = cpu_model();
  report.num_threads = options.num_threads > 0 ? options.num_threads : static_cast<int>(usable_cpus().size());
  report.clock_ghz = clock_ghz();
  std::vector<const cpu::LinearKernels*> sets;
  for (const cpu::LinearKernels* kernels : cpu::all_linear_kernels()) {
    if (kernels == &cpu::reference_linear() || !kernels->supported()) continue;
    if (options.kernels == "all" || options.kernels == kernels->name) sets.push_back(kernels);
  }
  if (sets.empty()) {
    fmt::print(stderr, "no kernel set '{}' runs here: give avx2, avx512, avx512_bf16, amx or all\n", options.kernels);
    return 2;
  }
  ThreadPool one(1);
  std::unique_ptr<ThreadPool> many;
  std::vector<ThreadPool*> pools = {&one};
  if (report.num_threads > 1) pools.push_back((many = std::make_unique<ThreadPool>(report.num_threads)).get());

  print_header(report);
  measure_caches(sets, pools, options.seconds, report);
  if (options.only_caches) return 0;
  measure_ceilings(pools, options, report);
  print_ceilings(report);
  std::fflush(stdout);
  measure_linear(sets, pools, options, report);
  if (options.layer_experts > 0) {
    for (const cpu::LinearKernels* kernels : sets) {
      for (const ThreadPool* pool : pools) {
        report.layers.push_back(bench_layer(
            {.kernels = kernels->name, .num_threads = pool->num_threads(), .num_experts = options.layer_experts}));
      }
    }
    print_layers(report);
  }
  print_goals(report);
  if (!options.json_path.empty()) {
    const Status written = write_json(report, options.json_path);
    if (!written.ok()) {
      fmt::print(stderr, "{}\n", written.message());
      return 2;
    }
  }
  return all_right(report) ? 0 : 1;
}

}  // namespace deepinfer::bench
