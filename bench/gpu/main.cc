#include <CLI/CLI.hpp>

#include "allocation_counter.h"

#include "gpu/gpu_bench.h"

int main(int argc, char** argv) {
  deepinfer::bench::GpuBenchOptions options;
  CLI::App app("Measures the card's ceilings, and kernels, layers and composed steps against them.");
  app.add_option("--only", options.only, "Sections to run")
      ->delimiter(',')
      ->check(CLI::IsMember(deepinfer::bench::gpu_bench_sections()));
  app.add_flag("--quick", options.is_quick, "Fewer replays and sizes");
  app.add_option("--most-rows", options.most_rows, "Leave out sizes with more rows together; 0: none");
  app.add_option("--peers", options.peers_path, "Times that bench/gpu/peers.py wrote");
  app.add_option("--json", options.json_path, "Also write the results to this file");
  app.add_option("--model", options.model, "A small model's folder, for the engine's rows");
  app.add_option("--commit", options.commit, "Named in the results");
  CLI11_PARSE(app, argc, argv);
  options.allocations = &deepinfer::allocation_count;
  return deepinfer::bench::run_gpu_bench(options);
}
