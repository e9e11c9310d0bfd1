#include "deepinfer/engine_flags.h"

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "deepinfer/progress_bar.h"

extern char** environ;

namespace deepinfer::app {
namespace {

struct Shown {
  const char* name;
  const char* help;
};
constexpr Shown kShown[] = {
    {"model", "Folder of the checkpoint: config.json, *.safetensors, tokenizer.json"},
    {"settings", "TOML file of settings; `deepinfer settings` lists them: flags too"},
    {"numerics", "Rounding: official, bf16_activations or exact (fp32)"},
    {"threads", "CPU threads, 0 for all of this machine [0]"},
    {"kernels", "CPU kernel set: auto, reference, avx2, avx512, avx512_bf16, amx"},
    {"max_num_seqs", "Sequences that run at a time [64]"},
    {"kv_cache_bytes", "Memory of the cache, such as 512MiB [chosen from the free memory]"},
};

// The option library would wrap a negative number.
std::string check_seed(const std::string& text) {
  const bool is_whole = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  return is_whole ? "" : fmt::format("'{}' is not a whole number of at least 0", text);
}

std::string check_bias(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos || !check_token_id(text.substr(0, colon)).empty()) {
    return fmt::format("'{}': write ID:BIAS", text);
  }
  char* end = nullptr;
  std::strtod(text.c_str() + colon + 1, &end);
  return *end == '\0' && colon + 1 < text.size() ? "" : fmt::format("'{}': write ID:BIAS, BIAS a number", text);
}

}  // namespace

void add_engine_flags(CLI::App& command, EngineFlags& flags) {
  for (const SettingRow& row : engine_settings_table().rows()) {
    std::string names = spell_setting(row.name, SettingSource::kFlag);
    if (row.name == "model") names = "-m," + names;
    if (row.name == "max_num_batched_tokens") names += ",--chunk-tokens";
    for (const std::string& alias : row.aliases) names += "," + spell_setting(alias, SettingSource::kFlag);
    const std::string spelled = spell_setting(row.name, SettingSource::kFlag);
    const auto shown =
        std::find_if(std::begin(kShown), std::end(kShown), [&](const Shown& s) { return s.name == row.name; });
    const bool is_shown = shown != std::end(kShown);
    command
        .add_option_function<std::string>(
            names,
            [&flags, spelled](const std::string& text) {
              flags.push_back({SettingSource::kFlag, spelled, text, ""});
            },
            is_shown ? shown->help : row.help)
        ->group(is_shown ? "Engine" : "");  // an empty group hides it
  }
}

Result<EngineSettings> settings_of(const EngineFlags& flags) {
  return read_engine_settings({.environment = environ, .flags = flags});
}

Result<RunningEngine> open_engine(const EngineFlags& flags, const Settings& fixed) {
  RunningEngine running;
  DI_ASSIGN_OR_RETURN(running.settings, settings_of(flags));
  Settings settings;
  for (const SettingValue& flag : flags) {
    std::string name = flag.spelled.substr(2);
    std::replace(name.begin(), name.end(), '-', '_');
    settings.emplace_back(name, flag.text);
  }
  for (const auto& [name, value] : fixed) {
    std::erase_if(settings, [&](const auto& given) { return given.first == name; });
    settings.emplace_back(name, value);
  }
  ProgressBar bar;
  std::string error;
  running.engine = Engine::create(settings, error, [&](double share) { bar.update(share); });
  if (!running.engine) return invalid_input("{}", error);
  DI_ASSIGN_OR_RETURN(running.suggested, GenerationConfig::from_folder(running.settings.model));
  return running;
}

Result<RunningEngine> open_text_engine(const EngineFlags& flags) {
  DI_ASSIGN_OR_RETURN(const EngineSettings settings, settings_of(flags));
  std::error_code ignored;
  if (std::filesystem::exists(settings.model + "/config.json", ignored) &&
      !std::filesystem::exists(settings.model + "/tokenizer.json", ignored)) {
    return no_tokenizer(settings.model);
  }
  return open_engine(flags);
}

void add_sampling_flags(CLI::App& command, SamplingFlags& flags) {
  SamplingParams& p = flags.params;
  const auto add = [&](const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->group("Sampling");
  };
  add("-t,--temperature", flags.temperature, "0 takes the best token [the model's suggestion, else 1]");
  add("--top-p", flags.top_p, "Keep the best tokens that hold this probability [suggestion, else 1]");
  add("--top-k", flags.top_k, "Keep this many best tokens, 0 for all [suggestion, else 0]");
  add("--min-p", p.min_p, "Drop tokens below this share of the best one")->capture_default_str();
  add("--presence-penalty", p.presence_penalty, "Taken from tokens that the answer holds, -2 to 2")
      ->capture_default_str();
  add("--frequency-penalty", p.frequency_penalty, "The same for every time it holds them")->capture_default_str();
  add("--repetition-penalty", p.repetition_penalty, "Divides logits of tokens seen so far, prompt too")
      ->capture_default_str();
  add("--seed,--seq-seed", p.seq_seed, "The same seed gives the same text [random]")->check(check_seed, "");
  command
      .add_option_function<std::vector<std::string>>(
          "--logit-bias",
          [&p](const std::vector<std::string>& items) {
            for (const std::string& item : items) {
              p.logit_bias.emplace_back(std::stoi(item), std::strtod(item.c_str() + item.find(':') + 1, nullptr));
            }
          },
          "ID:BIAS, added to the token's logit; may be repeated")
      ->check(check_bias, "")
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group("Sampling");
  add_token_ids(command, "--allowed-token-ids", p.allowed_token_ids, "Only these ids, separated by commas")
      ->group("Sampling");
  add("--bad-words", p.bad_words, "A text that the answer may not hold; may be repeated")->allow_extra_args(false);
  add("--stop", p.stop, "End the answer before this text; may be repeated")->allow_extra_args(false);
  add_token_ids(command, "--stop-token-ids", p.stop_token_ids, "End the answer at these ids, separated by commas")
      ->group("Sampling");
  command.add_flag("--include-stop", p.include_stop_str_in_output, "Keep the text of --stop at the end")
      ->group("Sampling");
  add("--min-tokens", p.min_tokens, "No end of sentence or stop token before so many tokens")->capture_default_str();
  command.add_flag("--ignore-eos", p.ignore_eos, "Go on after the end-of-sentence token")->group("Sampling");
}

void add_answer_flags(CLI::App& command, SamplingFlags& flags) {
  SamplingParams& p = flags.params;
  command.add_option("--n", p.n, "Independent answers; the first equals that of --n 1")
      ->capture_default_str()
      ->group("Sampling");
  command.add_option("--logprobs", p.logprobs, "With --json: log-probabilities, and those of so many best tokens")
      ->group("Sampling");
  command.add_option("--prompt-logprobs", p.prompt_logprobs, "The same of the prompt")->group("Sampling");
  command
      .add_flag(
          "--show-special-tokens", [&p](int64_t count) { p.skip_special_tokens = count == 0; },
          "Write control tokens as text")
      ->group("Sampling");
}

SamplingParams sampling_params(const SamplingFlags& flags, const GenerationConfig& suggested) {
  const bool greedy = suggested.do_sample.has_value() && !*suggested.do_sample;
  SamplingParams params = flags.params;
  params.temperature = flags.temperature.value_or(greedy ? 0.0 : suggested.temperature.value_or(1.0));
  params.top_p = flags.top_p.value_or(suggested.top_p.value_or(1.0));
  params.top_k = flags.top_k.value_or(suggested.top_k.value_or(0));
  return params;
}

}  // namespace deepinfer::app
