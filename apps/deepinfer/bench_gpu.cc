#include "deepinfer/bench_gpu.h"

#include <memory>
#include <string>
#include <vector>

#ifdef DEEPINFER_HAS_GPU_BENCH
#include "gpu/gpu_bench.h"
#endif

namespace deepinfer::app {

#ifdef DEEPINFER_HAS_GPU_BENCH

Command add_gpu_bench(CLI::App& parent) {
  CLI::App* command = parent.add_subcommand("gpu", "A card's ceilings, and its kernels, layers and steps against them");
  auto options = std::make_shared<bench::GpuBenchOptions>();
  command->add_option("--only", options->only, "Sections to run [all]")
      ->delimiter(',')
      ->check(CLI::IsMember(bench::gpu_bench_sections()));
  command->add_flag("--quick", options->is_quick, "Fewer replays and sizes");
  command->add_option("--most-rows", options->most_rows, "Leave out sizes with more rows together; 0: none");
  command->add_option("--peers", options->peers_path, "Times that bench/gpu/peers.py wrote, to compare with");
  command->add_option("--json", options->json_path, "Also write the results to this file");
  command->add_option("-m,--model", options->model, "A small model's folder, for the engine's rows");
  command->add_option("--commit", options->commit, "Named in the results");
  return [options] { return bench::run_gpu_bench(*options); };
}

#else

Command add_gpu_bench(CLI::App& parent) {
  CLI::App* command = parent.add_subcommand("gpu", "A card's ceilings and kernels (not in this build)");
  command->allow_extras();
  return [] {
    return fail(
        Status(ErrorCode::kUnsupported, "this build has no kernels for a card: configure with -DDEEPINFER_CUDA=ON"));
  };
}

#endif

}  // namespace deepinfer::app
