// OutputParser: the model's text as it streams in, taken apart into reasoning, answer and tool calls.
//
// A machine over bytes: however the text is cut into pushes, the deltas of each kind join to the same texts. What might
// still turn out to be a marker is held back until it is decided. It accepts the spellings `<D calls>` of V4.1 and
// `<Dtool_calls>` of V4 (D is the tool marker), blocks inside the reasoning, and parameters or calls that the model
// forgot to close; a marker that opens nothing stays text. Arguments are JSON as they stream, except that values the
// model marked as JSON are passed on unchecked. One per sequence, not shared between threads. Stop strings and the end
// of sentence are left to others.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {

struct OutputDelta {
  enum class Kind { kReasoning, kContent, kCallBegin, kCallArguments, kCallEnd };

  Kind kind;
  std::string text;       // kReasoning, kContent, kCallArguments: what to append
  int call_index = -1;    // kCall...: 0, 1, ...
  std::string call_id;    // kCallBegin
  std::string call_name;  // kCallBegin

  bool operator==(const OutputDelta&) const = default;
};

struct OutputParserOptions {
  bool is_thinking = true;               // the prompt ended with the marker that opens the reasoning
  std::string call_id_prefix = "call_";  // a call's id is this and its index
};

class OutputParser {
 public:
  explicit OutputParser(OutputParserOptions options);

  // Appends the deltas that became certain. Deltas are whole characters if the pushed pieces are.
  void push(std::string_view text, std::vector<OutputDelta>& deltas);
  // The text has ended: gives out what was held back, if it is reasoning or answer.
  void finish(std::vector<OutputDelta>& deltas);

  int num_calls() const { return num_calls_; }
  // After `finish`: the text ended inside a call, whose deltas should be discarded where that is still possible.
  bool is_inside_call() const { return is_inside_call_; }

 private:
  enum class State { kReasoning, kAnswer, kBlock, kName, kCall, kKey, kType, kValue, kClosingTag, kDone };

  void take(char byte);
  void take_text(char byte);
  void take_markup(char byte);
  void take_marker();
  void take_in_block();
  void take_in_call();
  void take_closing_tag(char byte);
  void release_newlines(size_t num);
  void emit(std::string_view text);
  void emit_arguments(std::string_view json);
  OutputDelta& delta(OutputDelta::Kind kind);
  void enter(State state);
  void begin_call();
  void begin_parameter();
  void end_call();

  OutputParserOptions options_;
  State state_;
  std::vector<OutputDelta>* deltas_ = nullptr;  // of the push in progress
  size_t num_newlines_ = 0;                     // line feeds held back: they may belong to the marker after them
  std::string held_;         // text states: the beginning of a marker; other states: what was read since the last mark
  bool is_at_start_ = true;  // of reasoning or answer, where line feeds are dropped
  bool is_string_value_ = false;
  bool has_parameters_ = false;
  bool is_inside_call_ = false;
  int num_calls_ = 0;
};

// A finished text in one go; a call that was cut short is left out.
struct ParsedOutput {
  struct Call {
    std::string id;
    std::string name;
    std::string arguments;
  };

  std::string reasoning;
  std::string content;
  std::vector<Call> calls;
};

ParsedOutput parse_output(std::string_view text, const OutputParserOptions& options);

}  // namespace deepinfer
