#include "deepinfer/common.h"

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "deepinfer/progress_bar.h"

namespace deepinfer::app {
namespace {

void on_interrupt(int) {
  if (interrupted().exchange(true)) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
}

}  // namespace

int fail(const Status& status) {
  std::fflush(stdout);
  std::fprintf(stderr, "deepinfer: %s\n", status.message().c_str());
  return kExitBadInput;
}

void add_model_flags(CLI::App& command, ModelFlags& flags) {
  command.add_option("-m,--model", flags.model, "Folder of the checkpoint: config.json, *.safetensors, tokenizer.json")
      ->envname("DEEPINFER_MODEL")
      ->required()
      ->group("Model");
  command
      .add_option("--numerics", flags.numerics, "Rounding: the vendor's, or linear inputs kept in BF16, or none (fp32)")
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(kNumericsNames), std::end(kNumericsNames))))
      ->capture_default_str()
      ->group("Model");
  command.add_option("--device", flags.device.name, "Where the model runs: cpu, cuda")
      ->capture_default_str()
      ->group("Model");
  command.add_option("--threads", flags.device.threads, "CPU threads, 0 for all of this machine")
      ->capture_default_str()
      ->group("Model");
  command
      .add_option("--kernels", flags.device.kernels, "CPU kernel set: auto, reference, avx2, avx512, avx512_bf16, amx")
      ->capture_default_str()
      ->group("Model");
  command.add_option("--engram-cache-rows", flags.engram_cache_rows, "Rows of each Engram table kept in memory")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str()
      ->group("Model");
}

Result<RunningModel> open_model(const ModelFlags& flags) {
  RunningModel running;
  DI_ASSIGN_OR_RETURN(running.device, make_device(flags.device));
  ProgressBar bar;
  ModelOptions options;
  options.numerics = *numerics_from_name(flags.numerics);
  options.engram_cache_rows = flags.engram_cache_rows;
  options.progress = [&](uint64_t done, uint64_t total) {
    bar.update(total > 0 ? static_cast<double>(done) / total : 1);
  };
  DI_ASSIGN_OR_RETURN(running.loaded, load_model(*running.device, flags.model, options));
  return running;
}

Result<const Tokenizer*> tokenizer_of(const RunningModel& running) {
  if (running.loaded.tokenizer) return &*running.loaded.tokenizer;
  return no_tokenizer(running.loaded.model->checkpoint().folder());
}

Status no_tokenizer(const std::string& folder) {
  return not_found(
      "{} has no tokenizer.json, so it cannot read or write text; `deepinfer logits --tokens` works without", folder);
}

std::string check_token_id(const std::string& item) {
  int32_t id = 0;
  const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), id);
  const bool ok = error == std::errc() && end == item.data() + item.size();
  return ok ? "" : fmt::format("'{}' is not a token id", item);
}

CLI::Option* add_token_ids(CLI::App& command, const std::string& name, std::vector<int32_t>& ids,
                           const std::string& help) {
  const auto items_of = [](const std::string& list) {
    std::vector<std::string> items(1);
    for (const char c : list) {
      if (c == ',') {
        items.emplace_back();
      } else {
        items.back() += c;
      }
    }
    return items;
  };
  const auto read = [&ids, items_of](const std::string& list) {
    ids.clear();
    for (const std::string& item : items_of(list)) ids.push_back(std::stoi(item));
  };
  const auto check = [items_of](const std::string& list) {
    for (const std::string& item : items_of(list)) {
      const std::string error = check_token_id(item);
      if (!error.empty()) return item == list ? error : fmt::format("{}, in {}", error, list);
    }
    return std::string();
  };
  return command.add_option_function<std::string>(name, read, help)->check(check, "")->type_name("ID,...");
}

Result<std::string> read_text(const std::string& path) {
  if (path == "-") return std::string(std::istreambuf_iterator<char>(std::cin), {});
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return invalid_input("{} is a folder: name a text file", path);
  std::ifstream file(path, std::ios::binary);
  if (!file) return not_found("cannot open {}: {}", path, std::strerror(errno));
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (file.bad()) return io_error("cannot read {}: {}", path, std::strerror(errno));
  return text;
}

std::atomic<bool>& interrupted() {
  static std::atomic<bool> flag{false};
  return flag;
}

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;  // without SA_RESTART, so that a read of the terminal returns
  sigaction(SIGINT, &action, nullptr);
}

std::string speed_line(const RequestOutput& output) {
  const auto rate = [](int64_t count, double seconds) { return seconds > 0 ? count / seconds : 0.0; };
  int64_t answer = 0;
  for (const Completion& completion : output.completions) answer += static_cast<int64_t>(completion.tokens.size());
  const int64_t prompt = static_cast<int64_t>(output.prompt_tokens.size()) - output.num_cached_tokens;
  const double prompt_seconds = output.metrics.first_token_seconds;
  const double decode_seconds = output.metrics.total_seconds - prompt_seconds;
  return fmt::format(
      "prompt: {} tokens in {:.2f} s ({:.1f} tokens/s), {} more from the cache; answer: {} tokens in {:.2f} s ({:.1f} "
      "tokens/s)",
      prompt, prompt_seconds, rate(prompt, prompt_seconds), output.num_cached_tokens, answer, decode_seconds,
      rate(std::max<int64_t>(0, answer - 1), decode_seconds));
}

}  // namespace deepinfer::app
