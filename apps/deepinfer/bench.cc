// `deepinfer bench`: `bench cpu` measures the machine and the kernels, `bench model` a checkpoint's forward pass,
// `bench engine` the engine with many requests, `bench gpu` a card.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>

#include "cpu/cpu_bench.h"
#include "deepinfer/bench_gpu.h"
#include "deepinfer/common.h"
#include "deepinfer/engine_flags.h"
#include "engine/engine_bench.h"
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

struct EngineBenchFlags {
  EngineFlags engine;
  bench::EngineBenchOptions options;
};

// Of the working tree that the program is run in.
std::string commit_here() {
  std::string commit;
  if (FILE* pipe = ::popen("git describe --always --dirty --abbrev=12 2>/dev/null", "r")) {
    char line[128];
    if (std::fgets(line, sizeof line, pipe) != nullptr) commit = line;
    ::pclose(pipe);
  }
  while (!commit.empty() && commit.back() == '\n') commit.pop_back();
  return commit.empty() ? "unknown" : commit;
}

Status bench_engine(EngineBenchFlags& flags) {
  bench::EngineBenchOptions& options = flags.options;
  DI_ASSIGN_OR_RETURN(const EngineSettings settings, settings_of(flags.engine));
  DI_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfig::from_file(settings.model + "/config.json"));
  options.window = config.sliding_window;
  if (options.commit.empty()) options.commit = commit_here();
  const int64_t largest = *std::max_element(options.batch.begin(), options.batch.end());
  const std::string slots = std::to_string(std::max(settings.max_num_seqs, std::max(largest, options.users)));
  Settings reported = {{"max_num_seqs", slots}};
  for (const SettingRow& row : engine_settings_table().rows()) {
    if (row.read == nullptr || !row.refusal.empty() || row.name == "max_num_seqs") continue;
    const std::string now = row.show(&settings);
    if (now != row.default_text) reported.emplace_back(row.name, now);
  }
  const bench::MakeEngine make_engine = [&](const Settings& more) -> Result<std::unique_ptr<Engine>> {
    Settings fixed = {{"max_num_seqs", slots}};
    for (const auto& setting : more) {
      std::erase_if(fixed, [&](const auto& other) { return other.first == setting.first; });
      fixed.push_back(setting);
    }
    DI_ASSIGN_OR_RETURN(RunningEngine running, open_engine(flags.engine, fixed));
    return std::move(running.engine);
  };
  return bench::run_engine_bench(options, make_engine, reported);
}

std::shared_ptr<EngineBenchFlags> add_engine_bench(CLI::App& command) {
  auto flags = std::make_shared<EngineBenchFlags>();
  bench::EngineBenchOptions& o = flags->options;
  const auto positive = CLI::Range(int64_t{1}, int64_t{1} << 30);
  const auto add = [&](const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->check(positive)->capture_default_str();
  };
  command.add_option("--sections", o.sections, "Which parts to run")
      ->delimiter(',')
      ->check(CLI::IsMember(o.sections))
      ->capture_default_str();
  add("--batch", o.batch, "Sequences together, of prefill and decode")->delimiter(',');
  add("--context", o.context, "Prompt tokens, of prefill and decode")->delimiter(',');
  add("--most-tokens", o.most_tokens, "Leave out rows with more prompt tokens together");
  add("--warm-up", o.warm_up_steps, "Decode steps before those that count");
  add("--steps", o.steps, "Decode steps that count");
  add("--repeats", o.repeats, "Repeats of every figure");
  add("--users", o.users, "Users of the closed loop");
  add("--requests", o.requests, "Requests of each loop and repeat");
  command.add_option("--rate", o.rate, "Requests a second of the open loop, 0: two thirds of the closed one's")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  add("--max-tokens", o.max_tokens, "Longest answer in the loops");
  add("--long-context", o.long_context, "Prompt tokens of the prefix and replay parts");
  command.add_option("--seed", o.seed, "Of prompts, answers and arrivals")->capture_default_str();
  command.add_option("--commit", o.commit, "Named in the results [asked of git]");
  command.add_option("--json", o.json_path, "Also write the results to this file");
  add_engine_flags(command, flags->engine);
  return flags;
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
  cpu->add_option("--kernels", cpu_flags->kernels, "avx2, avx512, avx512_bf16, amx or all")->capture_default_str();
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
  CLI::App* engine = command->add_subcommand("engine", "Throughput and latency of the engine with many requests");
  const auto engine_flags = add_engine_bench(*engine);
  const Command gpu = add_gpu_bench(*command);
  return [=] {
    if (command->got_subcommand("gpu")) return gpu();
    if (engine->parsed()) {
      const Status status = bench_engine(*engine_flags);
      return status.ok() ? kExitOk : fail(status);
    }
    if (cpu->parsed()) return bench::run_cpu_bench(*cpu_flags);
    const Status status = bench_model(*flags);
    return status.ok() ? kExitOk : fail(status);
  };
}

}  // namespace deepinfer::app
