#include "deepinfer/common.h"

#include <unistd.h>
#include <csignal>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>

namespace deepinfer::app {
namespace {

// Redraws at most ten times a second, and only once loading has taken half a second.
class ProgressBar {
 public:
  void update(uint64_t done, uint64_t total) {
    const auto now = std::chrono::steady_clock::now();
    if (!is_terminal_ || total == 0 || now - start_ < std::chrono::milliseconds(500)) return;
    if (done < total && now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    shown_ = true;
    constexpr int kWidth = 40;
    const int filled = static_cast<int>(std::min<double>(1.0, static_cast<double>(done) / total) * kWidth);
    std::fprintf(stderr, "\rloading [%s%s] %.1f of %.1f GB", std::string(filled, '#').c_str(),
                 std::string(kWidth - filled, ' ').c_str(), done / 1e9, total / 1e9);
    std::fflush(stderr);
  }
  ~ProgressBar() {
    if (shown_) std::fprintf(stderr, "\r\033[K");
  }

 private:
  const bool is_terminal_ = isatty(STDERR_FILENO) != 0;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_{};
  bool shown_ = false;
};

// The option library would wrap a negative number.
std::string check_seed(const std::string& text) {
  const bool is_whole = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  return is_whole ? "" : fmt::format("'{}' is not a whole number of at least 0", text);
}

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
  command.add_option("--threads", flags.cpu.num_threads, "CPU threads, 0 for all of this machine")
      ->capture_default_str()
      ->group("Model");
  command.add_option("--kernels", flags.cpu.kernels, "CPU kernel set: auto, reference, avx2, avx512, avx512_bf16")
      ->capture_default_str()
      ->group("Model");
  command.add_option("--engram-cache-rows", flags.engram_cache_rows, "Rows of each Engram table kept in memory")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str()
      ->group("Model");
}

Result<RunningModel> open_model(const ModelFlags& flags) {
  RunningModel running;
  DI_ASSIGN_OR_RETURN(running.device, make_cpu_device(flags.cpu));
  ProgressBar bar;
  ModelOptions options;
  options.numerics = *numerics_from_name(flags.numerics);
  options.engram_cache_rows = flags.engram_cache_rows;
  options.progress = [&](uint64_t done, uint64_t total) { bar.update(done, total); };
  DI_ASSIGN_OR_RETURN(running.loaded, load_model(*running.device, flags.model, options));
  return running;
}

Result<const Tokenizer*> tokenizer_of(const RunningModel& running) {
  if (running.loaded.tokenizer) return &*running.loaded.tokenizer;
  return not_found(
      "{} has no tokenizer.json, so it cannot read or write text; `deepinfer logits --tokens` works without",
      running.loaded.model->checkpoint().folder());
}

void add_sampling_flags(CLI::App& command, SamplingFlags& flags) {
  command.add_option("-t,--temperature", flags.temperature, "0 takes the best token [the model's suggestion, else 1]")
      ->group("Sampling");
  command.add_option("--top-p", flags.top_p, "Keep the best tokens that hold this probability [suggestion, else 1]")
      ->group("Sampling");
  command.add_option("--top-k", flags.top_k, "Keep this many best tokens, 0 for all [suggestion, else 0]")
      ->group("Sampling");
  command.add_option("--min-p", flags.min_p, "Drop tokens below this share of the best one")
      ->capture_default_str()
      ->group("Sampling");
  command.add_option("--seed", flags.seed, "The same seed gives the same text [random]")
      ->check(check_seed, "")
      ->group("Sampling");
}

SamplingParams sampling_params(const SamplingFlags& flags, const GenerationConfig& suggested, int64_t max_tokens) {
  const bool greedy = suggested.do_sample.has_value() && !*suggested.do_sample;
  SamplingParams params;
  params.temperature = flags.temperature.value_or(greedy ? 0.0 : suggested.temperature.value_or(1.0));
  params.top_p = flags.top_p.value_or(suggested.top_p.value_or(1.0));
  params.top_k = flags.top_k.value_or(suggested.top_k.value_or(0));
  params.min_p = flags.min_p;
  params.max_tokens = max_tokens;
  std::random_device random;
  params.seq_seed = flags.seed.value_or((uint64_t{random()} << 32) | random());
  return params;
}

std::string check_token_id(const std::string& item) {
  const size_t digits = item.find_first_not_of("0123456789", item.starts_with('-') ? 1 : 0);
  return item.empty() || item == "-" || digits != std::string::npos ? fmt::format("'{}' is not a token id", item) : "";
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

std::string speed_line(int64_t prompt_tokens, double prompt_seconds, int64_t tokens, double decode_seconds) {
  const auto rate = [](int64_t count, double seconds) { return seconds > 0 ? count / seconds : 0.0; };
  return fmt::format("prompt: {} tokens in {:.2f} s ({:.1f} tokens/s), answer: {} tokens in {:.2f} s ({:.1f} tokens/s)",
                     prompt_tokens, prompt_seconds, rate(prompt_tokens, prompt_seconds), tokens, decode_seconds,
                     rate(tokens - 1, decode_seconds));
}

}  // namespace deepinfer::app
