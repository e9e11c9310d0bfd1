// Where settings come from: a TOML file, the environment, command-line flags. Each gives the values as they were found;
// tables (settings.h) judge them. Stronger sources are applied later: file, environment, flags, keywords.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/settings.h"

namespace deepinfer {

// `name = value` lines of a TOML file. Values: texts, numbers, true and false, and arrays of these, which become one
// text with commas. Tables and dates are refused: names are not nested.
Result<std::vector<SettingValue>> settings_from_file(const std::string& path);

// Every variable whose name begins with DEEPINFER_. `environment` is a list of "NAME=value" that ends with null.
std::vector<SettingValue> settings_from_environment(const char* const* environment);

// "--name", "value" or "--name=value", nothing else.
Result<std::vector<SettingValue>> settings_from_flags(std::span<const std::string> arguments);

}  // namespace deepinfer
