// `deepinfer bench`: `bench cpu` measures the machine and the kernels, `bench model` a checkpoint's prompt and decode
// speed.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>

#include "cpu/cpu_bench.h"
#include "deepinfer/common.h"
#include "model/transformer.h"

namespace deepinfer::app {
namespace {

struct ModelBenchFlags {
  ModelFlags model;
  std::vector<int64_t> prompt_tokens = {16, 128, 512};
  std::vector<int64_t> batch = {1, 4, 16};
  int64_t decode_steps = 32;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Ids that spread over the vocabulary; content does not change the work but for routing.
std::vector<int32_t> some_tokens(int64_t count, int64_t vocab, uint32_t salt) {
  std::vector<int32_t> tokens(count);
  uint32_t x = salt * 2654435761u + 1;
  for (int32_t& token : tokens) {
    x = x * 1664525u + 1013904223u;
    token = static_cast<int32_t>((x >> 8) % vocab);
  }
  return tokens;
}

Status bench_prompt(Model& model, int64_t num_tokens) {
  std::vector<double> times;
  std::vector<float> logits;
  for (uint32_t round = 0; round < 5; ++round) {
    SequenceState state = model.make_sequence();
    const std::vector<int32_t> tokens = some_tokens(num_tokens, model.config().vocab_size, round);
    const auto start = std::chrono::steady_clock::now();
    for (int64_t begin = 0; begin < num_tokens; begin += 512) {
      const int64_t count = std::min<int64_t>(512, num_tokens - begin);
      const SequenceStep step{&state, std::span(tokens).subspan(begin, count)};
      DI_RETURN_IF_ERROR(model.forward({&step, 1}, logits));
    }
    times.push_back(seconds_since(start));
  }
  std::printf("prompt of %6lld tokens        %9.2f ms  %10.1f tokens/s\n", static_cast<long long>(num_tokens),
              median(times) * 1e3, num_tokens / median(times));
  return Status();
}

Status bench_decode(Model& model, int64_t batch, int64_t num_steps) {
  std::vector<SequenceState> states;
  for (int64_t i = 0; i < batch; ++i) states.push_back(model.make_sequence());
  std::vector<double> times;
  std::vector<float> logits;
  for (int64_t s = 0; s < num_steps + 3; ++s) {
    const std::vector<int32_t> tokens = some_tokens(batch, model.config().vocab_size, static_cast<uint32_t>(s));
    std::vector<SequenceStep> steps;
    for (int64_t i = 0; i < batch; ++i) steps.push_back({&states[i], std::span(tokens).subspan(i, 1)});
    const auto start = std::chrono::steady_clock::now();
    DI_RETURN_IF_ERROR(model.forward(steps, logits));
    if (s >= 3) times.push_back(seconds_since(start));  // the first steps grow buffers
  }
  std::printf("decode, batch %4lld            %9.2f ms  %10.1f tokens/s\n", static_cast<long long>(batch),
              median(times) * 1e3, batch / median(times));
  return Status();
}

Status bench_model(const ModelBenchFlags& flags) {
  DI_ASSIGN_OR_RETURN(RunningModel running, open_model(flags.model));
  std::printf("%s\nmedians; logits of the last token of each sequence, no sampling\n",
              running.device->description().c_str());
  for (const int64_t tokens : flags.prompt_tokens) {
    if (tokens > running.model().config().max_position_embeddings) {
      return invalid_input("--prompt-tokens {}: the model's context is {}", tokens,
                           running.model().config().max_position_embeddings);
    }
    DI_RETURN_IF_ERROR(bench_prompt(running.model(), tokens));
  }
  for (const int64_t batch : flags.batch) DI_RETURN_IF_ERROR(bench_decode(running.model(), batch, flags.decode_steps));
  return Status();
}

}  // namespace

Command add_bench(CLI::App& program) {
  CLI::App* command = program.add_subcommand("bench", "Measure speed");
  command->require_subcommand(1);
  auto flags = std::make_shared<ModelBenchFlags>();
  CLI::App* model = command->add_subcommand("model", "Prompt and decode speed of a checkpoint");
  const auto positive = CLI::Range(int64_t{1}, int64_t{1} << 30);
  model->add_option("--prompt-tokens", flags->prompt_tokens, "Lengths of prompts")
      ->delimiter(',')
      ->check(positive)
      ->capture_default_str();
  model->add_option("--batch", flags->batch, "Sequences decoded together")
      ->delimiter(',')
      ->check(positive)
      ->capture_default_str();
  model->add_option("--steps", flags->decode_steps, "Decode steps to time")->check(positive)->capture_default_str();
  add_model_flags(*model, flags->model);
  auto cpu_flags = std::make_shared<bench::CpuBenchOptions>();
  CLI::App* cpu = command->add_subcommand("cpu", "The CPU's ceilings, and its kernels and one layer against them");
  cpu->add_option("--threads", cpu_flags->num_threads, "CPU threads, 0 for all of this machine")->capture_default_str();
  cpu->add_option("--kernels", cpu_flags->kernels, "avx2, avx512, avx512_bf16 or all")->capture_default_str();
  cpu->add_option("--gigabytes", cpu_flags->gigabytes, "Packed weights to rotate over")
      ->check(CLI::Range(0.05, 100.0))
      ->capture_default_str();
  cpu->add_option("--seconds", cpu_flags->seconds, "Time for each row of the tables")
      ->check(CLI::Range(0.01, 60.0))
      ->capture_default_str();
  cpu->add_option("--layer-experts", cpu_flags->layer_experts, "Experts of the timed layer, 18.9 MB each; 0: no layer")
      ->check(CLI::Range(int64_t{0}, int64_t{384}))
      ->capture_default_str();
  cpu->add_option("--json", cpu_flags->json_path, "Also write the results to this file");
  return [=] {
    if (cpu->parsed()) return bench::run_cpu_bench(*cpu_flags);
    const Status status = bench_model(*flags);
    return status.ok() ? kExitOk : fail(status);
  };
}

}  // namespace deepinfer::app
