// What the commands of `deepinfer` share: loading a bare model with a progress bar, reading text, interrupts, exit
// codes. Commands on the engine: engine_flags.h.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "backends/backends.h"
#include "base/status.h"
#include "deepinfer/request.h"
#include "runtime/loaded_model.h"

namespace deepinfer::app {

inline constexpr int kExitOk = 0;
inline constexpr int kExitBadInput = 2;
inline constexpr int kExitInterrupted = 130;

// A command adds itself to the program and returns what to run when it was chosen.
using Command = std::function<int()>;

// Prints "deepinfer: message" to stderr and returns kExitBadInput.
int fail(const Status& status);

struct ModelFlags {
  std::string model;
  std::string numerics = "official";
  DeviceOptions device;
  int64_t engram_cache_rows = int64_t{1} << 16;
};
void add_model_flags(CLI::App& command, ModelFlags& flags);

// A loaded model with the device it lives on.
struct RunningModel {
  std::unique_ptr<Device> device;
  LoadedModel loaded;

  Model& model() { return *loaded.model; }
};
// Shows a progress bar on stderr when that is a terminal and loading takes a while.
Result<RunningModel> open_model(const ModelFlags& flags);
// The tokenizer, or a message that the folder lacks one.
Result<const Tokenizer*> tokenizer_of(const RunningModel& running);
Status no_tokenizer(const std::string& folder);

// Empty, or why this is no token id.
std::string check_token_id(const std::string& item);

// An option that takes token ids, separated by commas: 3,17,99. The option library alone would drop empty items.
CLI::Option* add_token_ids(CLI::App& command, const std::string& name, std::vector<int32_t>& ids,
                           const std::string& help);

// The text of a file; "-" is standard input.
Result<std::string> read_text(const std::string& path);

// Ctrl-C sets this flag; a second Ctrl-C before it is cleared ends the program.
std::atomic<bool>& interrupted();
void catch_interrupts();

// Tokens and rates of prompt and answer, of a whole output.
std::string speed_line(const RequestOutput& output);

Command add_generate(CLI::App& program);
Command add_chat(CLI::App& program);
Command add_tokenize(CLI::App& program);
Command add_score(CLI::App& program);
Command add_logits(CLI::App& program);
Command add_inspect(CLI::App& program);
Command add_bench(CLI::App& program);
Command add_settings(CLI::App& program);

}  // namespace deepinfer::app
