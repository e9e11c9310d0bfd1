#include "engine/settings.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "model/kv_format.h"
#include "model/numerics.h"

namespace deepinfer {
namespace {

using Table = SettingsOf<EngineSettings>;

constexpr int64_t kMany = int64_t{1} << 30;
constexpr int64_t kLargestRank = 4096;

// The names of the backends; whether this build has one is told by who makes the device.
Result<std::string> read_device(std::string_view text) {
  if (text == "cpu" || text == "cuda") return std::string(text);
  if (text == "nvidia") return std::string("cuda");
  if (text == "ascend") return unsupported("cpu or cuda: no Ascend backend is built");
  return invalid_input("cpu or cuda");
}

Result<int64_t> read_keep_tokens(std::string_view text) {
  if (text == "exact") return kExactKeepTokens;
  Result<int64_t> number = read_whole_number(text, 0, kMany);
  if (number.ok()) return number;
  return invalid_input("a whole number from 0 to {}, or exact", kMany);
}

std::string as_is(const std::string& text) { return text; }

void add_model(Table& table) {
  table.begin_group("Model and device");
  table.text("settings", &EngineSettings::settings, "a path",
             "TOML file with settings, one `name = value` a line. Not allowed in that file itself.");
  table
      .text("model", &EngineSettings::model, "a folder",
            "Checkpoint: `config.json`, `*.safetensors`, `tokenizer.json`. Required.")
      .alias("hf_model_dir");
  table
      .bind("device", &EngineSettings::device, "`cpu`, `cuda`",
            "Where the model runs. `cuda` needs a build with CUDA; `nvidia` means the same.", read_device, as_is)
      .alias("accelerator");
  table.choice("numerics", &EngineSettings::numerics, {std::begin(kNumericsNames), std::end(kNumericsNames)},
               "Rounding: the vendor's, or linear inputs kept in BF16, or none (fp32). Changes results.");
  table.choice("kernels", &EngineSettings::kernels, {"auto", "reference", "avx2", "avx512", "avx512_bf16", "amx"},
               "CPU kernel set. `auto` takes the fastest of those with equal bits; `avx512_bf16` and `amx` round "
               "differently.");
  table.whole_number("threads", &EngineSettings::threads, 0, 1024,
                     "CPU threads, 0 for as many as the process may use. Never changes results.");
  table.on_off("bind_threads", &EngineSettings::bind_threads,
               "Keep each CPU thread on a processor of its own, neighbours on the same NUMA node. For machines that "
               "run nothing else. Never changes results.");
  table.whole_number("engram_cache_rows", &EngineSettings::engram_cache_rows, 0, kMany,
                     "Rows of each Engram table kept in memory. Never changes results.");
}

void add_limits(Table& table) {
  table.begin_group("Limits");
  table.whole_number("max_model_len", &EngineSettings::max_model_len, 0, kMany,
                     "Longest prompt and answer together, in tokens. 0: the model's context.");
  table.whole_number("max_num_seqs", &EngineSettings::max_num_seqs, 1, 4096, "Sequences that run at a time.");
  table.whole_number("max_num_batched_tokens", &EngineSettings::max_num_batched_tokens, 1, kMany,
                     "Prompt tokens that one prefill step processes at most, over all sequences.");
  table.whole_number("max_queued_requests", &EngineSettings::max_queued_requests, 1, kMany,
                     "Waiting sequences; one more is refused.");
  table.whole_number("long_prefill_tokens", &EngineSettings::long_prefill_tokens, 1, kMany,
                     "A prompt with more uncached tokens is long: shorter ones may pass it.");
  table.whole_number("max_long_prefills", &EngineSettings::max_long_prefills, 1, kMany,
                     "Long prompts under way at a time.");
}

void add_scheduling(Table& table) {
  table.begin_group("Scheduling");
  table.on_off("zero_overhead_scheduling", &EngineSettings::zero_overhead_scheduling,
               "Plan the next step while the device runs this one. Never changes results.");
  table.on_off("disable_sync_guard", &EngineSettings::disable_sync_guard,
               "Let the launch of a step wait for the device instead of ending the process there. For debugging.");
  table.whole_number("prefill_attempt_interval", &EngineSettings::prefill_attempt_interval, 1, kMany,
                     "Decode steps after which prompts are processed if every rank has some.");
  table.whole_number("prefill_any_attempt_interval", &EngineSettings::prefill_any_attempt_interval, 1, kMany,
                     "Decode steps after which prompts are processed if any rank has some.");
  table.whole_number("prefill_low_occupancy", &EngineSettings::prefill_low_occupancy, 0, kMany,
                     "With at most so many sequences decoding, prompts do not wait for an interval.");
  table.whole_number("max_prefill_steps", &EngineSettings::max_prefill_steps, 1, kMany,
                     "Prefill steps in a row while other sequences wait to decode.");
}

void add_cache(Table& table) {
  table.begin_group("Cache");
  table.byte_size("kv_cache_bytes", &EngineSettings::kv_cache_bytes,
                  "Memory for the rows of all sequences and cached prefixes. 0: chosen from the free memory.");
  table.choice("kv_cache_format", &EngineSettings::kv_cache_format, {"auto", "bf16", "fp8", "fp4"},
               "How cached rows are stored. `auto`: `bf16` on the CPU, `fp4` on a card. `fp4` keeps the codes of the "
               "model's own quantisation: results are those of "
               "`bf16` with 28 % of its bytes a token. `fp8` (52 %) rounds compressed rows once more: changes results. "
               "With `exact` numerics rows are fp32 and only `bf16` is allowed.");
  table.on_off("enable_prefix_caching", &EngineSettings::enable_prefix_caching,
               "Keep the rows of finished prompts and answers and use them for requests that begin alike.");
  table.whole_number("prefix_unit_interval", &EngineSettings::prefix_unit_interval, 0, kMany,
                     "Tokens between places in a long text where a later request may join. 0: at ends and forks only.");
  table.byte_size("host_cache_bytes", &EngineSettings::host_cache_bytes,
                  "Memory for prefixes that left the device's cache; they come back exactly as they were. 0: none.");
  table.text("disk_cache_dir", &EngineSettings::disk_cache_dir, "a folder",
             "Where prefixes are kept on disk, across restarts. Needs "
             "host_cache_bytes, through which they go. Empty: nowhere.");
  table.byte_size("disk_cache_bytes", &EngineSettings::disk_cache_bytes,
                  "Space for them; the oldest go first. 0: 16 GiB.");
}

void add_replay(Table& table) {
  table.begin_group("Long prompts");
  table.choice(
      "yoco_prefill_truncation_mode", &EngineSettings::yoco_prefill_truncation_mode, {"mask", "compact"},
      "How the decoder's layers skip the prompt before the kept tokens: `compact` does not compute them, `mask` "
      "computes and ignores them (same results, for comparison).");
  table.bind(
      "yoco_prefill_keep_tokens", &EngineSettings::yoco_prefill_keep_tokens, "a whole number, or `exact`",
      "Tokens at a prompt's end that the decoder's layers see. 0: all of them; `exact`: as many as it takes for "
      "results not to change. Less is faster and changes results; it has to hold the window and what may be taken "
      "back (twice with overlapped scheduling).",
      read_keep_tokens,
      [](int64_t value) { return value == kExactKeepTokens ? std::string("exact") : std::to_string(value); });
  table.whole_number("max_backtracking_tokens", &EngineSettings::max_backtracking_tokens, 0, 4096,
                     "Tokens of a sequence that can be taken back.");
}

void add_determinism(Table& table) {
  table.begin_group("Determinism");
  table.on_off(
      "batch_invariant", &EngineSettings::batch_invariant,
      "What a request gets does not depend on its batch. Always so with these kernels: 0 is accepted and changes "
      "nothing.");
}

void add_ranks(Table& table) {
  table.begin_group("Ranks");
  const auto size = [&](const char* name, int64_t EngineSettings::*member, int64_t low, const char* help) {
    table.whole_number(name, member, low, kLargestRank, std::string(help) + " This build runs one rank: only 1.");
  };
  size("expert_parallel_size", &EngineSettings::expert_parallel_size, 1, "Ranks that share the experts.");
  size("data_parallel_size", &EngineSettings::data_parallel_size, 1, "Ranks with requests of their own.");
  size("context_parallel_size", &EngineSettings::context_parallel_size, 1, "Ranks that share one request.");
  size("engram_parallel_size", &EngineSettings::engram_parallel_size, 0,
       "Ranks that share the Engram tables. 0: as many as the model has.");
}

void add_speculation(Table& table) {
  constexpr char kWhy[] = "Speculative decoding is not built.";
  table.begin_group("Speculation");
  table.whole_number("use_nextn_decode", &EngineSettings::use_nextn_decode, 0, 64, "Tokens drafted a step.")
      .refuse(kWhy);
  table.refused("enable_mtp_varlen", "0", kWhy);
  table.refused("dflash_confidence_head_temperature", "", kWhy);
  table.refused("dflash_enforce_eager", "", kWhy);
  table.refused("dflash_cudagraph_batch_size_interval", "", kWhy);
}

void add_accelerators(Table& table) {
  table.begin_group("Accelerators");
  table.number(
      "gpu_memory_utilization", &EngineSettings::gpu_memory_utilization, 0.01, 1,
      "Share of a GPU's memory to use, for weights, caches and everything else. Without a GPU it means nothing.");
  table.refused("index_attn_memory_limit", "", "The indexer has no workspace of a size to choose.");
  table.refused("engram_force_gpu_storage", "0", "Engram rows stay in the host's files and memory.");
  table.refused("engram_pad_token", "", "The padding token of the Engram hashes is the one that config.json names.");
}

void add_structured_output(Table& table) {
  constexpr char kWhy[] = "Structured output is not built.";
  table.begin_group("Structured output");
  for (const char* name :
       {"so_builder_cpus", "xgrammar_timeout", "xgrammar_cache_limit_bytes", "xgrammar_disable_cache"}) {
    table.refused(name, "", kWhy);
  }
}

void add_expert_balance(Table& table) {
  constexpr char kWhy[] = "Moving and replicating experts is not built: one rank holds all of them.";
  table.begin_group("Expert balance");
  for (const char* name : {"override_num_extra_experts", "expert_rearrangement_step_interval",
                           "rearrange_after_prefill_in_normal_engine", "show_eplb_detail", "force_load_balance"}) {
    table.refused(name, "0", kWhy);
  }
  table.refused("force_imbalance_ratio", "0.0", kWhy);
  table.refused("expert_count_window_size", "", kWhy);
  table.refused("moe_lb_stat_interval", "", kWhy);
}

// The last value of `settings` outside files: that source is the strongest.
std::string file_named_by(const SettingsSources& sources, std::span<const SettingValue> environment) {
  std::string path;
  const auto look = [&](std::span<const SettingValue> values) {
    for (const SettingValue& value : values) {
      if (value.spelled == spell_setting("settings", value.source)) path = value.text;
    }
  };
  look(environment);
  look(sources.flags);
  look(sources.keywords);
  return path;
}

}  // namespace

const SettingsTable& engine_settings_table() {
  static const Table table = [] {
    Table built;
    for (const auto add : {add_model, add_limits, add_scheduling, add_cache, add_replay, add_determinism, add_ranks,
                           add_speculation, add_accelerators, add_structured_output, add_expert_balance}) {
      add(built);
    }
    return built;
  }();
  return table;
}

std::string engine_settings_markdown() {
  return "# Settings\n\n"
         "Written from the table in `src/engine/settings.cc`; a test keeps both equal.\n\n"
         "A setting has one name everywhere: `max_num_seqs` in a settings file and in Python, `DEEPINFER_MAX_NUM_SEQS` "
         "in "
         "the environment, `--max-num-seqs` as a flag. Weakest first: default, file, environment, flag, keyword. An "
         "unknown name, also of an environment variable that begins with `DEEPINFER_`, and a value outside its range "
         "are "
         "errors.\n" +
         engine_settings_table().to_markdown();
}

Result<EngineSettings> read_engine_settings(const SettingsSources& sources, std::span<const SettingsTarget> others) {
  EngineSettings settings;
  std::vector<SettingsTarget> targets = {{&engine_settings_table(), &settings}};
  targets.insert(targets.end(), others.begin(), others.end());
  const std::vector<SettingValue> environment = settings_from_environment(sources.environment);
  if (const std::string path = file_named_by(sources, environment); !path.empty()) {
    DI_ASSIGN_OR_RETURN(const std::vector<SettingValue> file, settings_from_file(path));
    for (const SettingValue& value : file) {
      if (value.spelled == "settings") return invalid_input("{}: a settings file cannot name another", value.where);
    }
    DI_RETURN_IF_ERROR(apply_settings(file, targets));
  }
  DI_RETURN_IF_ERROR(apply_settings(environment, targets));
  DI_RETURN_IF_ERROR(apply_settings(sources.flags, targets));
  DI_RETURN_IF_ERROR(apply_settings(sources.keywords, targets));
  DI_RETURN_IF_ERROR(check_engine_settings(settings));
  return settings;
}

Status check_engine_settings(const EngineSettings& settings) {
  if (settings.model.empty()) return invalid_input("model: name the folder of a checkpoint");
  if (!settings.disk_cache_dir.empty() && settings.host_cache_bytes == 0) {
    return invalid_input("disk_cache_dir {}: what goes to disk passes through host memory; set host_cache_bytes too",
                         settings.disk_cache_dir);
  }
  const std::optional<Numerics> numerics = numerics_from_name(settings.numerics);
  const std::optional<KvFormat> kv_format = kv_format_from_name(settings.kv_cache_format);
  if (numerics && kv_format) DI_RETURN_IF_ERROR(check_kv_format(*kv_format, *numerics));
  DI_RETURN_IF_ERROR(check_parallel_sizes(settings.expert_parallel_size, settings.data_parallel_size,
                                          settings.context_parallel_size, settings.engram_parallel_size));
  const int64_t ranks =
      std::max(settings.data_parallel_size * settings.context_parallel_size, settings.engram_parallel_size);
  if (ranks == 1) return Status();
  return unsupported(
      "data_parallel_size {}, context_parallel_size {}, engram_parallel_size {}: this build runs one rank, leave all "
      "at 1",
      settings.data_parallel_size, settings.context_parallel_size, settings.engram_parallel_size);
}

KvFormat kv_format_of(const EngineSettings& settings) {
  if (settings.kv_cache_format != "auto") return *kv_format_from_name(settings.kv_cache_format);
  const bool packs = settings.device != "cpu" && Rounding::of(*numerics_from_name(settings.numerics)).quantise_caches;
  return packs ? KvFormat::kFp4 : KvFormat::kBf16;
}

Status check_parallel_sizes(int64_t expert_parallel, int64_t data_parallel, int64_t context_parallel,
                            int64_t engram_parallel) {
  const int64_t model = context_parallel * data_parallel;
  const int64_t engram = engram_parallel == 0 ? model : engram_parallel;
  const int64_t world = std::max(model, engram);
  if (model % expert_parallel != 0) {
    return invalid_input("expert_parallel_size {}: has to divide context_parallel_size * data_parallel_size = {}",
                         expert_parallel, model);
  }
  if (world % model != 0) {
    return invalid_input(
        "engram_parallel_size {}: has to be a multiple or a divisor of context_parallel_size * "
        "data_parallel_size = {}",
        engram, model);
  }
  if (world % engram != 0) {
    return invalid_input("engram_parallel_size {}: has to divide context_parallel_size * data_parallel_size = {}",
                         engram, model);
  }
  return Status();
}

}  // namespace deepinfer
