// EngineSettings: every setting of the engine, in one table: names, defaults, ranges, help (docs/settings.md is written
// from it). Nobody below this folder sees it: each part has options of its own.
//
// The names of the design's environment variables are all known: one whose feature this build lacks is refused with a
// sentence instead of being ignored.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/settings.h"
#include "base/settings_sources.h"
#include "base/status.h"
#include "model/kv_format.h"

namespace deepinfer {

// yoco_prefill_keep_tokens: as many as it takes for results not to change.
inline constexpr int64_t kExactKeepTokens = -1;

struct EngineSettings {
  std::string settings;  // path of the file the others may come from

  std::string model;
  std::string device = "cpu";
  std::string numerics = "official";
  std::string kernels = "auto";
  int64_t threads = 0;  // 0: as many as the process may use
  bool bind_threads = false;
  int64_t engram_cache_rows = 65536;

  int64_t max_model_len = 0;  // 0: the model's context
  int64_t max_num_seqs = 64;
  int64_t max_num_batched_tokens = 2048;
  int64_t max_queued_requests = 1024;
  int64_t long_prefill_tokens = 8192;
  int64_t max_long_prefills = 1;

  bool zero_overhead_scheduling = true;
  bool disable_sync_guard = false;
  int64_t prefill_attempt_interval = 70;
  int64_t prefill_any_attempt_interval = 100;
  int64_t prefill_low_occupancy = 16;
  int64_t max_prefill_steps = 8;

  int64_t kv_cache_bytes = 0;            // 0: chosen from the free memory
  std::string kv_cache_format = "auto";  // see kv_format_of
  bool enable_prefix_caching = true;
  int64_t prefix_unit_interval = 8192;
  int64_t host_cache_bytes = 0;
  std::string disk_cache_dir;
  int64_t disk_cache_bytes = 0;

  std::string yoco_prefill_truncation_mode = "compact";
  int64_t yoco_prefill_keep_tokens = 0;  // 0: every layer sees the whole prompt
  int64_t max_backtracking_tokens = 0;
  int64_t use_nextn_decode = 0;

  bool batch_invariant = true;
  double gpu_memory_utilization = 0.9;

  int64_t expert_parallel_size = 1;
  int64_t data_parallel_size = 1;
  int64_t context_parallel_size = 1;
  int64_t engram_parallel_size = 0;  // 0: context_parallel_size * data_parallel_size
};

// Constant, any thread.
const SettingsTable& engine_settings_table();

// Text of docs/settings.md.
std::string engine_settings_markdown();

struct SettingsSources {
  const char* const* environment = nullptr;  // null: none is looked at
  std::vector<SettingValue> flags;
  std::vector<SettingValue> keywords;
};

// From defaults, the file that `settings` names, environment, flags, keywords: each stronger than the one before. Then
// checks what no row can check alone. `others`: further tables of the program, filled from the same sources.
Result<EngineSettings> read_engine_settings(const SettingsSources& sources,
                                            std::span<const SettingsTarget> others = {});

// What rows cannot see alone. For settings that were filled by hand.
Status check_engine_settings(const EngineSettings& settings);

// The format that the settings name. `auto`: packed where a device has memory of its own to save and bandwidth to lose,
// plain on the CPU, and where the numerics quantise nothing. Requires: checked settings.
KvFormat kv_format_of(const EngineSettings& settings);

// Whether ranks can be laid out so. All but engram_parallel (0: as many as the model has) are at least 1.
Status check_parallel_sizes(int64_t expert_parallel, int64_t data_parallel, int64_t context_parallel,
                            int64_t engram_parallel);

}  // namespace deepinfer
