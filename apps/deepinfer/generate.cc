// `deepinfer generate`: continues a text, streaming.
#include <unistd.h>

#include <cstdio>
#include <memory>

#include <nlohmann/json.hpp>

#include "deepinfer/common.h"
#include "runtime/session.h"
#include "sampling/validate.h"
#include "text/detokenizer.h"

namespace deepinfer::app {
namespace {

struct Flags {
  ModelFlags model;
  SamplingFlags sampling;
  std::optional<std::string> prompt;
  std::string file;
  int64_t max_tokens = 256;
  int64_t chunk_tokens = Session::kDefaultChunkTokens;
  bool no_bos = false;
  bool ignore_eos = false;
  bool control_tokens = false;
  bool json = false;
};

Result<std::vector<int32_t>> read_prompt(const Flags& flags, const Tokenizer& tokenizer, const ModelConfig& config) {
  std::string text;
  if (flags.prompt) {
    text = *flags.prompt;
  } else {
    DI_ASSIGN_OR_RETURN(text, read_text(flags.file.empty() ? "-" : flags.file));
  }
  std::vector<int32_t> tokens;
  if (!flags.no_bos && config.bos_token_id >= 0) tokens.push_back(static_cast<int32_t>(config.bos_token_id));
  const std::vector<int32_t> body = flags.control_tokens ? tokenizer.encode(text) : tokenizer.encode_ordinary(text);
  tokens.insert(tokens.end(), body.begin(), body.end());
  return tokens;
}

Status print_json(const std::vector<int32_t>& prompt, const GenerationResult& result, const SamplingParams& sampling,
                  const std::string& text, const RunningModel& running) {
  nlohmann::ordered_json out;
  out["text"] = text;
  out["tokens"] = result.tokens;
  out["finish_reason"] = name_of(result.reason);
  out["prompt_tokens"] = prompt.size();
  out["seed"] = *sampling.seq_seed;
  out["temperature"] = sampling.temperature;
  out["top_p"] = sampling.top_p;
  out["top_k"] = sampling.top_k;
  out["min_p"] = sampling.min_p;
  out["numerics"] = name_of(running.loaded.model->numerics());
  out["kernels"] = running.device->kernel_set();
  out["prompt_seconds"] = result.prompt_seconds;
  out["decode_seconds"] = result.decode_seconds;
  std::printf("%s\n", out.dump().c_str());
  return Status();
}

Status generate(const Flags& flags, bool& was_interrupted) {
  if (isatty(STDIN_FILENO) && !flags.prompt && flags.file.empty()) {
    return invalid_input("no prompt: give --prompt TEXT or --file FILE, or pipe a text into standard input");
  }
  DI_ASSIGN_OR_RETURN(RunningModel running, open_model(flags.model));
  DI_ASSIGN_OR_RETURN(const Tokenizer* tokenizer, tokenizer_of(running));
  DI_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt, read_prompt(flags, *tokenizer, running.model().config()));

  GenerationOptions options;
  options.sampling = sampling_params(flags.sampling, running.loaded.generation, flags.max_tokens);
  options.seed = *options.sampling.seq_seed;
  DI_RETURN_IF_ERROR(validate(options.sampling, running.model().config().vocab_size));  // before the prompt is printed
  if (!flags.ignore_eos) options.stop_tokens = running.loaded.stop_tokens;
  options.cancel = &interrupted();
  catch_interrupts();

  Detokenizer detokenizer(*tokenizer);
  std::string text;
  const auto emit = [&](const std::string& piece) {
    text += piece;
    if (flags.json) return;
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  };
  if (!flags.json && flags.prompt) emit(*flags.prompt);
  text.clear();
  Session session(running.model(), flags.chunk_tokens);
  DI_ASSIGN_OR_RETURN(const GenerationResult result,
                      session.generate(prompt, options, [&](int32_t token) { emit(detokenizer.push(token)); }));
  emit(detokenizer.finish());
  was_interrupted = result.reason == FinishReason::kAborted;
  if (flags.json) return print_json(prompt, result, options.sampling, text, running);
  std::printf("\n");
  std::fflush(stdout);
  std::fprintf(stderr, "\n%s\n%s, seed %llu\n",
               speed_line(result.num_prompt_tokens, result.prompt_seconds, static_cast<int64_t>(result.tokens.size()),
                          result.decode_seconds)
                   .c_str(),
               running.device->description().c_str(), static_cast<unsigned long long>(options.seed));
  return Status();
}

}  // namespace

Command add_generate(CLI::App& program) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = program.add_subcommand("generate", "Continue a text");
  auto* prompt = command->add_option("-p,--prompt", flags->prompt, "The text to continue");
  command->add_option("-f,--file", flags->file, "Read the text from this file, - for standard input")->excludes(prompt);
  command->add_option("-n,--max-tokens", flags->max_tokens, "Stop after this many tokens")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  command->add_flag("--json", flags->json, "Print one JSON object at the end instead of the text");
  command->add_flag("--no-bos", flags->no_bos, "Do not put the begin-of-sentence token in front");
  command->add_flag("--ignore-eos", flags->ignore_eos, "Go on after the end-of-sentence token");
  command->add_flag("--control-tokens", flags->control_tokens,
                    "Read the spelling of control tokens in the text as such");
  command->add_option("--chunk-tokens", flags->chunk_tokens, "Prompt tokens a step; changes speed, never the result")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  add_sampling_flags(*command, flags->sampling);
  add_model_flags(*command, flags->model);
  return [flags] {
    bool was_interrupted = false;
    const Status status = generate(*flags, was_interrupted);
    if (!status.ok()) return fail(status);
    return was_interrupted ? kExitInterrupted : kExitOk;
  };
}

}  // namespace deepinfer::app
