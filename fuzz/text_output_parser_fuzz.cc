// Any bytes as the model's output: the first decides the mode, the second how the rest is cut. The deltas join to the
// same however it is cut, and finished calls without raw values have JSON objects for arguments.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "text/json_text.h"
#include "text/output_parser.h"
#include "text/utf8.h"

using namespace deepinfer;  // NOLINT: a program of its own

namespace {

// Deltas of one kind in a row count as one.
std::vector<OutputDelta> joined(const std::vector<OutputDelta>& deltas) {
  std::vector<OutputDelta> out;
  for (const OutputDelta& delta : deltas) {
    const bool continues = !out.empty() && out.back().kind == delta.kind && out.back().call_index == delta.call_index;
    if (continues) {
      out.back().text += delta.text;
    } else {
      out.push_back(delta);
    }
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const OutputParserOptions options{.is_thinking = (data[0] & 1) != 0};
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  OutputParser whole(options), cut(options);
  std::vector<OutputDelta> whole_deltas, cut_deltas;
  whole.push(text, whole_deltas);
  whole.finish(whole_deltas);
  uint32_t random = data[1];
  for (size_t begin = 0; begin < text.size();) {
    random = random * 1664525u + 1013904223u;
    const size_t length = data[1] == 0 ? 1 : 1 + (random >> 28);
    cut.push(text.substr(begin, length), cut_deltas);
    begin += length;
  }
  cut.finish(cut_deltas);
  DI_CHECK(joined(whole_deltas) == joined(cut_deltas), "the deltas depend on how the text is cut");
  DI_CHECK(whole.is_inside_call() == cut.is_inside_call(), "the end depends on how the text is cut");

  const ParsedOutput output = parse_output(text, options);
  DI_CHECK(output.calls.size() + (whole.is_inside_call() ? 1 : 0) == static_cast<size_t>(whole.num_calls()),
           "calls are missing");
  if (!is_valid_utf8(text) || text.find("false\">") != std::string_view::npos) return 0;
  for (const ParsedOutput::Call& call : output.calls) {
    const Result<Json> arguments = parse_json(call.arguments);
    DI_CHECK(arguments.ok() && arguments->is_object(), "arguments {}", call.arguments);
  }
  return 0;
}
