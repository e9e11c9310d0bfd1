#include <CLI/CLI.hpp>

#include "cpu/cpu_bench.h"

int main(int argc, char** argv) {
  deepinfer::bench::CpuBenchOptions options;
  CLI::App app("Measures this machine's ceilings and the CPU kernels against them.");
  app.add_option("--threads", options.num_threads, "Threads; 0: all of this machine");
  app.add_option("--kernels", options.kernels, "avx2, avx512, avx512_bf16, amx or all");
  app.add_option("--gigabytes", options.gigabytes, "Packed weights to rotate over")->check(CLI::Range(0.05, 100.0));
  app.add_option("--seconds", options.seconds, "Time for each row of the tables")->check(CLI::Range(0.01, 60.0));
  app.add_option("--layer-experts", options.layer_experts, "Experts of the timed layer, 18.9 MB each; 0: no layer")
      ->check(CLI::Range(int64_t{0}, int64_t{384}));
  app.add_flag("--only-caches", options.only_caches, "Time reading cached rows of every format and nothing else");
  app.add_option("--json", options.json_path, "Also write the results to this file");
  CLI11_PARSE(app, argc, argv);
  return deepinfer::bench::run_cpu_bench(options);
}
