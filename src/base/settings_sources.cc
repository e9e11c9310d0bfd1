#include "base/settings_sources.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

namespace deepinfer {
namespace {

Result<std::string> text_of(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  if (const auto* flag = node.as_boolean()) return std::string(flag->get() ? "1" : "0");
  const toml::array* array = node.as_array();
  if (array == nullptr) return invalid_input("give a text, a number, true, false, or an array of these");
  std::string joined;
  for (const toml::node& item : *array) {
    if (item.is_array()) return invalid_input("an array inside an array: give one list");
    DI_ASSIGN_OR_RETURN(const std::string text, text_of(item));
    joined += (joined.empty() ? "" : ",") + text;
  }
  return joined;
}

}  // namespace

Result<std::vector<SettingValue>> settings_from_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return not_found("cannot open the settings file {}: {}", path, std::strerror(errno));
  const std::string content(std::istreambuf_iterator<char>(file), {});
  if (file.bad()) return io_error("cannot read the settings file {}: {}", path, std::strerror(errno));
  const toml::parse_result result = toml::parse(content, path);
  if (!result) {
    return invalid_input("{}:{}: {}", path, result.error().source().begin.line, result.error().description());
  }
  std::vector<SettingValue> values;
  for (const auto& [key, node] : result.table()) {
    const std::string where = fmt::format("{}:{}", path, node.source().begin.line);
    Result<std::string> text = text_of(node);
    if (!text.ok()) return text.status().with_context(fmt::format("{}: {}", where, key.str()));
    values.push_back({SettingSource::kFile, std::string(key.str()), *text, where});
  }
  return values;
}

std::vector<SettingValue> settings_from_environment(const char* const* environment) {
  std::vector<SettingValue> values;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const size_t equals = entry.find('=');
    if (!entry.starts_with("DEEPINFER_") || equals == std::string_view::npos) continue;
    values.push_back(
        {SettingSource::kEnvironment, std::string(entry.substr(0, equals)), std::string(entry.substr(equals + 1)), ""});
  }
  // The environment's order is an accident: the same mistakes shall give the same message.
  std::sort(values.begin(), values.end(), [](const auto& a, const auto& b) { return a.spelled < b.spelled; });
  return values;
}

Result<std::vector<SettingValue>> settings_from_flags(std::span<const std::string> arguments) {
  std::vector<SettingValue> values;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (!argument.starts_with("--") || argument.size() == 2) {
      return invalid_input("{}: flags are written --name value or --name=value", argument);
    }
    const size_t equals = argument.find('=');
    if (equals != std::string::npos) {
      values.push_back({SettingSource::kFlag, argument.substr(0, equals), argument.substr(equals + 1), ""});
    } else if (i + 1 < arguments.size() && !arguments[i + 1].starts_with("--")) {
      values.push_back({SettingSource::kFlag, argument, arguments[++i], ""});
    } else {
      return invalid_input("{} needs a value: write {} VALUE", argument, argument);
    }
  }
  return values;
}

}  // namespace deepinfer
