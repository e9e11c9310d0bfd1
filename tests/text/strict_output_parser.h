// The grammar of well-formed output, as a batch parser that refuses everything else: the oracle for OutputParser.
//
// Thinking: reasoning `</think>` rest; the rest is content, then optionally two line feeds and one block of calls, with
// nothing after it. D is the tool marker, `space` the blank between it and a tag's name ("" in the older spelling).
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "text/chat_markers.h"
#include "text/json_text.h"
#include "text/output_parser.h"

namespace deepinfer {

class StrictOutputParser {
 public:
  StrictOutputParser(std::string_view text, std::string_view space, std::string_view block_word)
      : rest_(text), d_(std::string(kToolMarker) + std::string(space)), block_word_(block_word) {}

  std::optional<ParsedOutput> parse(bool is_thinking) {
    ParsedOutput output;
    if (is_thinking && !take_until(kThinkEnd, output.reasoning)) return std::nullopt;
    const std::string opener = "\n\n<" + d_ + block_word_ + ">\n";
    if (!take_until(opener, output.content)) {
      output.content = rest_;
      return output;
    }
    while (take("<" + d_ + "invoke name=\"")) {
      ParsedOutput::Call call;
      call.id = "call_" + std::to_string(output.calls.size());
      if (!take_until("\">\n", call.name) || !parse_parameters(call.arguments)) return std::nullopt;
      output.calls.push_back(call);
    }
    if (!take("</" + d_ + block_word_ + ">") || !rest_.empty()) return std::nullopt;
    return output;
  }

 private:
  bool take(const std::string& expected) {
    if (!rest_.starts_with(expected)) return false;
    rest_.remove_prefix(expected.size());
    return true;
  }

  bool take_until(std::string_view end, std::string& out) {
    const size_t at = rest_.find(end);
    if (at == std::string_view::npos) return false;
    out = rest_.substr(0, at);
    rest_.remove_prefix(at + end.size());
    return true;
  }

  bool parse_parameters(std::string& arguments) {
    std::set<std::string> names;
    arguments = "{";
    while (take("<" + d_ + "parameter name=\"")) {
      std::string name, flag, value;
      if (!take_until("\" string=\"", name) || !take_until("\">", flag)) return false;
      if (!take_until("</" + d_ + "parameter>\n", value)) return false;
      if ((flag != "true" && flag != "false") || !names.insert(name).second) return false;
      if (flag == "true") value = dump_json(Json(value));
      arguments += (names.size() > 1 ? ", " : "") + dump_json(Json(name)) + ": " + value;
    }
    arguments += "}";
    if (names.empty()) take("\n");
    return take("</" + d_ + "invoke>\n");
  }

  std::string_view rest_;
  std::string d_;
  std::string block_word_;
};

}  // namespace deepinfer
