// The tables of the CPU benchmark and their JSON form.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "cpu/cache_bench.h"
#include "cpu/layer_bench.h"
#include "cpu/linear_bench.h"

namespace deepinfer::bench {

struct CeilingRow {
  std::string name;
  std::string unit;
  int num_threads;
  double p50, p90;
};

struct CpuReport {
  std::string date;
  std::string cpu_model;
  int num_threads = 1;
  double clock_ghz = 0.0;
  std::vector<CeilingRow> ceilings;
  LinearResults linear;
  std::vector<LayerResult> layers;
  std::vector<CacheResult> caches;
};

void print_header(const CpuReport& report);
void print_ceilings(const CpuReport& report);
void print_linear(const CpuReport& report);
void print_layers(const CpuReport& report);
void print_caches(const CpuReport& report);
void print_goals(const CpuReport& report);
Status write_json(const CpuReport& report, const std::string& path);
// Whether every checked result was right.
bool all_right(const CpuReport& report);

}  // namespace deepinfer::bench
