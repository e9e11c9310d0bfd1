// What the commands on the engine share: its settings as flags, the sampling of a request as flags, opening it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/generation_config.h"
#include "deepinfer/common.h"
#include "deepinfer/engine.h"
#include "engine/settings.h"

namespace deepinfer::app {

// Settings that were given as flags, in their order.
using EngineFlags = std::vector<SettingValue>;

// Every setting of the engine is a flag; --help shows the few that most people want.
void add_engine_flags(CLI::App& command, EngineFlags& flags);

struct RunningEngine {
  EngineSettings settings;
  GenerationConfig suggested;
  std::unique_ptr<Engine> engine;
};

// Settings from file, environment and flags, and on top of them `fixed`, which a command needs for what it does.
Result<EngineSettings> settings_of(const EngineFlags& flags);
Result<RunningEngine> open_engine(const EngineFlags& flags, const Settings& fixed = {});
// The same, for commands that read and write text: a model without tokenizer is refused before it is loaded.
Result<RunningEngine> open_text_engine(const EngineFlags& flags);

// Fields that the user left out are the checkpoint's suggestion, else the default of SamplingParams.
struct SamplingFlags {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<int64_t> top_k;
  SamplingParams params;  // all other fields
};
void add_sampling_flags(CLI::App& command, SamplingFlags& flags);
// Those of a single answer to a single prompt.
void add_answer_flags(CLI::App& command, SamplingFlags& flags);
SamplingParams sampling_params(const SamplingFlags& flags, const GenerationConfig& suggested);

}  // namespace deepinfer::app
