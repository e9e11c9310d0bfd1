// The GPU benchmark: the card's ceilings, then every kernel, layers of the released model and steps composed of them
// against those, in one run and on random data only.
#pragma once

#include <atomic>
#include <string>
#include <vector>

namespace deepinfer::bench {

struct GpuBenchOptions {
  std::vector<std::string> only;  // sections; empty: all
  bool is_quick = false;          // fewer replays and sizes, and four layers of weights in place of eight
  int64_t most_rows = 0;          // leave out sizes with more rows together; 0: none
  std::string peers_path;         // what peers.py wrote, or empty
  std::string json_path;          // empty: no file
  std::string commit;             // named in the results
  std::string model;              // a small model's folder, for the engine's rows; empty: they are left out
  const std::atomic<int64_t>* allocations = nullptr;  // counts the program's heap allocations, or nobody does
};

// Their order is that of the run.
const std::vector<std::string>& gpu_bench_sections();

// Prints tables to stdout, the goals last. Returns the exit status: 1 if a result was wrong, 2 if there is no card or
// the options are.
int run_gpu_bench(const GpuBenchOptions& options);

}  // namespace deepinfer::bench
