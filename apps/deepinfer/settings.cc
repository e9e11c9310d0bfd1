// `deepinfer settings`: every setting of the engine and what it is set to here.
#include <cstdio>
#include <memory>

#include "deepinfer/engine_flags.h"

namespace deepinfer::app {
namespace {

constexpr size_t kWidth = 96;
constexpr size_t kIndent = 6;

// Words of `text` in lines of at most kWidth.
void print_wrapped(const std::string& text) {
  std::string line(kIndent, ' ');
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const bool is_empty = line.size() == kIndent;
    if (!is_empty && line.size() + 1 + end - begin > kWidth) {
      std::printf("%s\n", line.c_str());
      line.assign(kIndent, ' ');
    } else if (!is_empty) {
      line += ' ';
    }
    line += text.substr(begin, end - begin);
    begin = end + 1;
  }
  std::printf("%s\n", line.c_str());
}

Status print_settings(const EngineFlags& flags, bool markdown) {
  if (markdown) {
    std::printf("%s", engine_settings_markdown().c_str());
    return Status();
  }
  EngineFlags given = flags;
  // A model is needed to run, not to look.
  Result<EngineSettings> settings = settings_of(given);
  if (!settings.ok()) {
    given.push_back({SettingSource::kFlag, "--model", "(none)", ""});
    Result<EngineSettings> with_model = settings_of(given);
    if (!with_model.ok()) return Status(settings.status().code(), settings.status().message());
    settings = std::move(with_model);
    settings->model.clear();
  }
  std::printf("Weakest first: default, settings file, environment (DEEPINFER_NAME), flag.\n");
  std::string group;
  for (const SettingRow& row : engine_settings_table().rows()) {
    if (row.read == nullptr || !row.refusal.empty()) continue;
    if (row.group != group) std::printf("\n%s\n", (group = row.group).c_str());
    const std::string now = row.show(&*settings);
    std::printf("  %s %s%s\n", spell_setting(row.name, SettingSource::kFlag).c_str(),
                now.empty() ? "(none)" : now.c_str(),
                now == row.default_text
                    ? ""
                    : fmt::format("   (default {})", row.default_text.empty() ? "none" : row.default_text).c_str());
    print_wrapped(fmt::format("{} Value: {}.", row.help, row.allowed));
  }
  return Status();
}

}  // namespace

Command add_settings(CLI::App& program) {
  struct Flags {
    EngineFlags engine;
    bool markdown = false;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = program.add_subcommand("settings", "List the engine's settings and what they are set to");
  command->add_flag("--markdown", flags->markdown, "The text of docs/settings.md, with the names that are refused");
  add_engine_flags(*command, flags->engine);
  return [flags] {
    const Status status = print_settings(flags->engine, flags->markdown);
    return status.ok() ? kExitOk : fail(status);
  };
}

}  // namespace deepinfer::app
