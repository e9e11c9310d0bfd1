// The CPU benchmark: the machine's ceilings, then the kernels against them, in one run and on random data only.
#pragma once

#include <cstdint>
#include <string>

namespace deepinfer::bench {

struct CpuBenchOptions {
  int num_threads = 0;          // 0: as many as the process may use; a single thread is always measured too
  std::string kernels = "all";  // or one set by name
  double gigabytes = 1.0;       // of packed weights to rotate over, so that no cache holds them
  double seconds = 0.4;         // for each row of the tables
  int64_t layer_experts = 384;  // routed experts of the timed layer, 18.9 MB each; 0: no layer
  bool only_caches = false;     // time reading cached rows and nothing else
  std::string json_path;        // empty: no file
};

// Prints a table to stdout. Returns the exit status: 1 if a result was wrong, 2 if the options are.
int run_cpu_bench(const CpuBenchOptions& options);

}  // namespace deepinfer::bench
