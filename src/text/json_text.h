// JSON as the chat format needs it: read with limits, written exactly as Python's json.dumps(ensure_ascii=False) writes
// what json.loads read.
//
// Members keep their order; a repeated key keeps its first place and its last value. Integers of up to 308 digits
// survive: those beyond 64 bits are held as a binary value with their digits. Longer ones, NaN, Infinity and lone
// surrogates, which Python accepts, are refused, and so is nesting deeper than 200 (hostile input must not exhaust the
// stack). Pure functions, any thread.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/status.h"

namespace deepinfer {

using Json = nlohmann::ordered_json;

Result<Json> parse_json(std::string_view text);

// Requires: a value from parse_json, or one built of valid UTF-8 strings and finite numbers.
std::string dump_json(const Json& value);

// Appends `text` as the inside of a JSON string: without the quotes around it.
void append_json_escaped(std::string_view text, std::string& out);

}  // namespace deepinfer
