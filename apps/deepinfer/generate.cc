// `deepinfer generate`: continues a text, streaming.
#include <unistd.h>

#include <cstdio>
#include <memory>

#include <nlohmann/json.hpp>

#include "deepinfer/engine_flags.h"
#include "engine/request_stream.h"
#include "model/model_config.h"

namespace deepinfer::app {
namespace {

using Json = nlohmann::ordered_json;

struct Flags {
  EngineFlags engine;
  SamplingFlags sampling;
  std::optional<std::string> prompt;
  std::string file;
  double timeout_seconds = 0;
  bool no_bos = false;
  bool control_tokens = false;
  bool json = false;
};

Result<std::vector<int32_t>> read_prompt(const Flags& flags, const RunningEngine& running) {
  std::string text;
  if (flags.prompt) {
    text = *flags.prompt;
  } else {
    DI_ASSIGN_OR_RETURN(text, read_text(flags.file.empty() ? "-" : flags.file));
  }
  const std::string& folder = running.settings.model;
  std::vector<int32_t> tokens;
  if (!flags.no_bos) {
    DI_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfig::from_file(folder + "/config.json"));
    if (config.bos_token_id >= 0) tokens.push_back(static_cast<int32_t>(config.bos_token_id));
  }
  std::vector<int32_t> body;
  if (flags.control_tokens) {
    DI_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::load(folder + "/tokenizer.json"));
    body = tokenizer.encode(text);
  } else {
    body = running.engine->tokenize(text);
  }
  tokens.insert(tokens.end(), body.begin(), body.end());
  return tokens;
}

Json to_json(const std::vector<TokenLogprobs>& logprobs) {
  Json list = Json::array();
  for (const TokenLogprobs& at : logprobs) {
    Json entry = {{"token", at.token}, {"logprob", at.logprob}, {"rank", at.rank}, {"best", Json::array()}};
    for (const TokenLogprob& best : at.best)
      entry["best"].push_back({{"token", best.token}, {"logprob", best.logprob}});
    list.push_back(std::move(entry));
  }
  return list;
}

Json to_json(const Completion& completion, bool with_logprobs) {
  Json out;
  out["text"] = completion.text;
  out["tokens"] = completion.tokens;
  out["finish_reason"] = name_of(*completion.finish_reason);
  out["stop_reason"] = completion.stop_reason.empty() ? Json() : Json(completion.stop_reason);
  if (with_logprobs) {
    out["logprobs"] = to_json(completion.logprobs);
    out["cumulative_logprob"] = completion.cumulative_logprob;
  }
  return out;
}

// One answer's fields stand at the top; several are a list of "choices".
void print_json(const RequestOutput& output, const SamplingParams& sampling, const RunningEngine& running) {
  Json out;
  if (output.completions.size() == 1) {
    out = to_json(output.completions[0], sampling.logprobs.has_value());
  } else {
    for (const Completion& c : output.completions) out["choices"].push_back(to_json(c, sampling.logprobs.has_value()));
  }
  if (sampling.prompt_logprobs) out["prompt_logprobs"] = to_json(output.prompt_logprobs);
  out["prompt_tokens"] = output.prompt_tokens.size();
  out["num_cached_tokens"] = output.num_cached_tokens;
  out["seed"] = output.seq_seed;
  out["temperature"] = sampling.temperature;
  out["top_p"] = sampling.top_p;
  out["top_k"] = sampling.top_k;
  out["min_p"] = sampling.min_p;
  out["numerics"] = running.settings.numerics;
  out["fingerprint"] = output.fingerprint;
  out["device"] = running.engine->device_description();
  out["prompt_seconds"] = output.metrics.first_token_seconds;
  out["decode_seconds"] = output.metrics.total_seconds - output.metrics.first_token_seconds;
  std::printf("%s\n", out.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
}

// Reads the stream to its end; the first Ctrl-C cancels the request. `show` gets every piece of text of one answer.
RequestOutput read_all(RequestStream& stream, const std::function<void(const std::string&)>& show) {
  RequestOutput total;
  bool cancelled = false;
  while (!total.finished) {
    if (interrupted() && !std::exchange(cancelled, true)) stream.cancel();
    std::optional<RequestOutput> update = stream.next_for(std::chrono::milliseconds(50));
    if (!update) continue;
    for (const Completion& news : update->completions) show(news.text);
    if (total.id == 0) {
      total = std::move(*update);
    } else {
      append_update(total, std::move(*update));
    }
  }
  std::sort(total.completions.begin(), total.completions.end(),
            [](const Completion& a, const Completion& b) { return a.index < b.index; });
  return total;
}

void print_choices(const RequestOutput& output) {
  for (const Completion& c : output.completions) {
    std::printf("[answer %d of %zu, %s]\n%s\n", c.index + 1, output.completions.size(), name_of(*c.finish_reason),
                c.text.c_str());
  }
}

Status generate(const Flags& flags, bool& was_interrupted) {
  if (isatty(STDIN_FILENO) && !flags.prompt && flags.file.empty()) {
    return invalid_input("no prompt: give --prompt TEXT or --file FILE, or pipe a text into standard input");
  }
  DI_ASSIGN_OR_RETURN(const RunningEngine running, open_text_engine(flags.engine));
  Request request;
  DI_ASSIGN_OR_RETURN(request.prompt_tokens, read_prompt(flags, running));
  request.sampling = sampling_params(flags.sampling, running.suggested);
  request.timeout_seconds = flags.timeout_seconds;
  const SamplingParams sampling = request.sampling;
  catch_interrupts();
  std::string error;
  const std::unique_ptr<RequestStream> stream = running.engine->submit(std::move(request), error);
  if (!stream) return invalid_input("{}", error);  // before anything is printed

  const bool streams = !flags.json && sampling.n == 1;
  const auto show = [&](const std::string& text) {
    if (!streams) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  if (flags.prompt) show(*flags.prompt);
  const RequestOutput output = read_all(*stream, show);
  was_interrupted = interrupted();
  if (!output.error.empty()) return io_error("{}", output.error);
  if (flags.json) {
    print_json(output, sampling, running);
    return Status();
  }
  if (streams) {
    std::printf("\n");
  } else {
    print_choices(output);
  }
  std::fflush(stdout);
  std::fprintf(stderr, "\n%s\n%s, %s, seed %llu\n", speed_line(output).c_str(),
               running.engine->device_description().c_str(), output.fingerprint.c_str(),
               static_cast<unsigned long long>(output.seq_seed));
  return Status();
}

}  // namespace

Command add_generate(CLI::App& program) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = program.add_subcommand("generate", "Continue a text");
  auto* prompt = command->add_option("-p,--prompt", flags->prompt, "The text to continue");
  command->add_option("-f,--file", flags->file, "Read the text from this file, - for standard input")->excludes(prompt);
  flags->sampling.params.max_tokens = 256;
  command->add_option("-n,--max-tokens", flags->sampling.params.max_tokens, "Stop after this many tokens")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  command->add_option("--timeout", flags->timeout_seconds, "Stop after so many seconds, 0 for never")
      ->capture_default_str();
  command->add_flag("--json", flags->json, "Print one JSON object at the end instead of the text");
  command->add_flag("--no-bos", flags->no_bos, "Do not put the begin-of-sentence token in front");
  command->add_flag("--control-tokens", flags->control_tokens,
                    "Read the spelling of control tokens in the text as such");
  add_sampling_flags(*command, flags->sampling);
  add_answer_flags(*command, flags->sampling);
  add_engine_flags(*command, flags->engine);
  return [flags] {
    bool was_interrupted = false;
    const Status status = generate(*flags, was_interrupted);
    if (!status.ok()) return fail(status);
    return was_interrupted ? kExitInterrupted : kExitOk;
  };
}

}  // namespace deepinfer::app
