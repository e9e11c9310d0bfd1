// Settings: the mechanism. A table of rows says of each setting its name, type, default, allowed values, help, and
// whether this build has it; values come from a file, the environment, flags and keywords (settings_sources.h).
//
// A setting has one name everywhere: `max_num_seqs` in a file and in Python, DEEPINFER_MAX_NUM_SEQS in the environment,
// --max-num-seqs as a flag. What no row knows, and what a row cannot read, is an error that names the nearest name or
// the allowed values. A row of a feature that is not built refuses every value but the one that leaves it off. Which
// settings there are is left to the owners of tables (engine/settings.h). Tables are built once, then constant.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace deepinfer {

enum class SettingSource { kFile, kEnvironment, kFlag, kKeyword };

// How a setting is spelled in a source.
std::string spell_setting(std::string_view name, SettingSource source);

// One value as it was found. All values are text until a row reads them.
struct SettingValue {
  SettingSource source = SettingSource::kKeyword;
  std::string spelled;  // DEEPINFER_THREADS, --threads, threads
  std::string text;
  std::string where;  // for messages: "settings.toml:3", else empty
};

struct SettingRow {
  SettingRow& alias(std::string other) {
    aliases.push_back(std::move(other));
    return *this;
  }
  // The feature is not built: `sentence` says so. Values that leave `default_text` as it is are still accepted.
  SettingRow& refuse(std::string sentence) {
    refusal = std::move(sentence);
    return *this;
  }

  std::string name;
  std::vector<std::string> aliases;
  std::string group;    // heading in the documentation
  std::string allowed;  // "a whole number from 1 to 64": completes "give ..."
  std::string default_text;
  std::string help;
  std::string refusal;
  std::function<Status(std::string_view text, void* settings)> read;
  std::function<std::string(const void* settings)> show;
};

class SettingsTable {
 public:
  std::span<const SettingRow> rows() const { return rows_; }
  // By name or alias; null if there is none.
  const SettingRow* find(std::string_view name) const;
  // A table a group, then the refused ones with their sentences.
  std::string to_markdown() const;

  void begin_group(std::string title) { group_ = std::move(title); }
  // A name that is known and has no value of its own: refused, unless the text is `neutral` (empty: always).
  void refused(std::string name, std::string neutral, std::string sentence);

 protected:
  SettingRow& add(SettingRow row);

 private:
  std::vector<SettingRow> rows_;
  std::string group_;
};

// Readers of one text each; the message is the allowed range alone.
Result<int64_t> read_whole_number(std::string_view text, int64_t low, int64_t high);
Result<double> read_number(std::string_view text, double low, double high);
Result<bool> read_switch(std::string_view text);        // 0 or 1, false or true
Result<int64_t> read_byte_size(std::string_view text);  // 0, 1048576, 512MiB, 8GiB
std::string show_byte_size(int64_t bytes);

// A table of the members of a plain struct whose initialisers are the defaults.
template <typename S>
class SettingsOf : public SettingsTable {
 public:
  SettingRow& text(std::string name, std::string S::*member, std::string allowed, std::string help) {
    return bind<std::string>(
        std::move(name), member, std::move(allowed), std::move(help),
        [](std::string_view text) -> Result<std::string> { return std::string(text); },
        [](const std::string& value) { return value; });
  }
  SettingRow& choice(std::string name, std::string S::*member, std::vector<std::string> choices, std::string help) {
    const std::string allowed = fmt::format("one of {}", fmt::join(choices, ", "));
    return bind<std::string>(
        std::move(name), member, allowed, std::move(help),
        [choices, allowed](std::string_view text) -> Result<std::string> {
          for (const std::string& choice : choices) {
            if (choice == text) return choice;
          }
          return invalid_input("{}", allowed);
        },
        [](const std::string& value) { return value; });
  }
  SettingRow& whole_number(std::string name, int64_t S::*member, int64_t low, int64_t high, std::string help) {
    return bind<int64_t>(
        std::move(name), member, fmt::format("a whole number from {} to {}", low, high), std::move(help),
        [low, high](std::string_view text) { return read_whole_number(text, low, high); },
        [](int64_t value) { return std::to_string(value); });
  }
  SettingRow& number(std::string name, double S::*member, double low, double high, std::string help) {
    return bind<double>(
        std::move(name), member, fmt::format("a number from {} to {}", low, high), std::move(help),
        [low, high](std::string_view text) { return read_number(text, low, high); },
        [](double value) { return fmt::format("{}", value); });
  }
  SettingRow& on_off(std::string name, bool S::*member, std::string help) {
    return bind<bool>(
        std::move(name), member, "0 or 1", std::move(help), [](std::string_view text) { return read_switch(text); },
        [](bool value) { return std::string(value ? "1" : "0"); });
  }
  SettingRow& byte_size(std::string name, int64_t S::*member, std::string help) {
    return bind<int64_t>(
        std::move(name), member, "a size such as 1048576, 512MiB or 8GiB", std::move(help),
        [](std::string_view text) { return read_byte_size(text); },
        [](int64_t value) { return show_byte_size(value); });
  }
  // `parse` (text to Result<T>, its message what is allowed) and `show` (T to text) of the caller's.
  template <typename T, typename Parse, typename Show>
  SettingRow& bind(std::string name, T S::*member, std::string allowed, std::string help, Parse parse, Show show) {
    SettingRow row;
    row.name = std::move(name);
    row.allowed = std::move(allowed);
    row.help = std::move(help);
    row.read = [member, parse](std::string_view text, void* settings) -> Status {
      DI_ASSIGN_OR_RETURN(static_cast<S*>(settings)->*member, parse(text));
      return Status();
    };
    row.show = [member, show](const void* settings) { return show(static_cast<const S*>(settings)->*member); };
    const S defaults;
    row.default_text = row.show(&defaults);
    return add(std::move(row));
  }
};

// A table and the struct that it fills.
struct SettingsTarget {
  const SettingsTable* table = nullptr;
  void* settings = nullptr;
};

// Stores the values of one source (each setting at most once) where a table knows them. Several tables share one set of
// names: a program that reads more than one has to apply them together.
Status apply_settings(std::span<const SettingValue> values, std::span<const SettingsTarget> targets);

}  // namespace deepinfer
