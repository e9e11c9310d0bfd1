#include "text/output_parser.h"

#include <algorithm>
#include <span>

#include "text/chat_markers.h"
#include "text/json_text.h"

namespace deepinfer {
namespace {

// A macro, since only literals can be joined to literals.
#define TOOL_MARKER "｜DSML｜"
static_assert(kToolMarker == TOOL_MARKER);

constexpr std::string_view kInvoke = "invoke name=\"";
constexpr std::string_view kParameter = "parameter name=\"";
constexpr std::string_view kCloser = "</" TOOL_MARKER;
constexpr std::string_view kBlockWords[] = {"calls", "call", "tool_calls", "function_calls"};

// All markers that end reasoning or answer; none is the beginning of another.
constexpr std::string_view kTextMarkers[] = {
    kThinkEnd,
    "<" TOOL_MARKER " calls>",
    "<" TOOL_MARKER "calls>",
    "<" TOOL_MARKER " call>",
    "<" TOOL_MARKER "call>",
    "<" TOOL_MARKER " tool_calls>",
    "<" TOOL_MARKER "tool_calls>",
    "<" TOOL_MARKER " function_calls>",
    "<" TOOL_MARKER "function_calls>",
    "<" TOOL_MARKER " invoke name=\"",
    "<" TOOL_MARKER "invoke name=\"",
};

// All that end a value. Only the first is as it should be; the others begin something new without closing the value.
constexpr std::string_view kValueMarkers[] = {
    kCloser,
    "<" TOOL_MARKER " parameter name=\"",
    "<" TOOL_MARKER "parameter name=\"",
    "<" TOOL_MARKER " invoke name=\"",
    "<" TOOL_MARKER "invoke name=\"",
};
#undef TOOL_MARKER

bool is_word_of_block(std::string_view word) {
  return std::find(std::begin(kBlockWords), std::end(kBlockWords), word) != std::end(kBlockWords);
}

// What is ignored between tags need not be kept; the longest tag looked for is shorter than this.
void forget_all_but_the_end(std::string& text) {
  constexpr size_t kKeptBytes = 64;
  if (text.size() > 4 * kKeptBytes) text.erase(0, text.size() - kKeptBytes);
}

std::string_view without_leading_spaces(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(' '), text.size()));
}

}  // namespace

OutputParser::OutputParser(OutputParserOptions options)
    : options_(std::move(options)), state_(options_.is_thinking ? State::kReasoning : State::kAnswer) {}

void OutputParser::push(std::string_view text, std::vector<OutputDelta>& deltas) {
  deltas_ = &deltas;
  for (const char byte : text) take(byte);
  deltas_ = nullptr;
}

void OutputParser::finish(std::vector<OutputDelta>& deltas) {
  deltas_ = &deltas;
  if (state_ == State::kReasoning || state_ == State::kAnswer) {
    release_newlines(num_newlines_);
    emit(held_);
    held_.clear();
  }
  deltas_ = nullptr;
}

void OutputParser::take(char byte) {
  switch (state_) {
    case State::kReasoning:
    case State::kAnswer:
    case State::kValue:
      return take_text(byte);
    case State::kClosingTag:
      return take_closing_tag(byte);
    case State::kDone:
      return;
    default:
      return take_markup(byte);
  }
}

void OutputParser::take_markup(char byte) {
  held_.push_back(byte);
  switch (state_) {
    case State::kBlock:
      return take_in_block();
    case State::kCall:
      return take_in_call();
    case State::kName:
      if (byte == '"') begin_call();
      return;
    case State::kKey:
      if (byte != '"') return;
      held_.pop_back();
      emit_arguments(held_);
      delta(OutputDelta::Kind::kCallArguments).text += "\": ";
      return enter(State::kType);
    case State::kType:
      // A flag that is neither true nor false counts as true: plain text can always be passed on.
      if (byte != '>') return;
      is_string_value_ = !held_.ends_with("false\">");
      if (is_string_value_) delta(OutputDelta::Kind::kCallArguments).text += '"';
      return enter(State::kValue);
    default:
      return;
  }
}

// Bytes go to held_ as long as it is the beginning of a marker; otherwise its first byte is text and the rest is tried
// again.
void OutputParser::take_text(char byte) {
  held_.push_back(byte);
  while (!held_.empty()) {
    if (held_[0] == '\n') {
      ++num_newlines_;
      held_.erase(0, 1);
      continue;
    }
    const std::span<const std::string_view> markers =
        state_ == State::kValue ? std::span<const std::string_view>(kValueMarkers) : kTextMarkers;
    const auto may_become = [this](std::string_view marker) { return marker.starts_with(held_); };
    if (std::any_of(markers.begin(), markers.end(), may_become)) {
      if (std::find(markers.begin(), markers.end(), held_) != markers.end()) take_marker();
      return;
    }
    release_newlines(num_newlines_);
    emit(std::string_view(held_).substr(0, 1));
    held_.erase(0, 1);
  }
}

// held_ is one of the markers.
void OutputParser::take_marker() {
  const std::string marker = std::move(held_);
  held_.clear();
  const bool begins_call = marker.ends_with(kInvoke);
  if (state_ == State::kValue) {
    const bool is_closed = marker == kCloser;
    // An unclosed value is followed by the line feed that separates tags.
    release_newlines(is_closed || num_newlines_ == 0 ? num_newlines_ : num_newlines_ - 1);
    if (is_string_value_) delta(OutputDelta::Kind::kCallArguments).text += '"';
    if (is_closed) return enter(State::kClosingTag);
    if (!begins_call) return begin_parameter();
    end_call();
    return enter(State::kName);
  }
  if (marker != kThinkEnd) return enter(begins_call ? State::kName : State::kBlock);
  if (state_ == State::kAnswer) return;  // once more: skipped, as if it were not there
  enter(State::kAnswer);
  is_at_start_ = true;
}

void OutputParser::take_in_block() {
  forget_all_but_the_end(held_);
  if (held_.ends_with(kInvoke)) return enter(State::kName);
  if (held_.back() != '>') return;
  const size_t closer = held_.rfind(kCloser);
  if (closer != std::string::npos) {
    std::string_view word = std::string_view(held_).substr(closer + kCloser.size());
    word.remove_suffix(1);
    if (is_word_of_block(without_leading_spaces(word))) return enter(State::kDone);
  }
  held_.clear();
}

void OutputParser::take_in_call() {
  forget_all_but_the_end(held_);
  if (held_.ends_with(kParameter)) return begin_parameter();
  if (held_.ends_with(kCloser)) return enter(State::kClosingTag);
  if (held_.ends_with(kInvoke)) {
    end_call();
    return enter(State::kName);
  }
}

// After `</D`, inside a call: the word decides what is closed.
void OutputParser::take_closing_tag(char byte) {
  const bool is_word_byte = byte == ' ' || byte == '_' || (byte >= 'a' && byte <= 'z');
  if (is_word_byte) {
    held_.push_back(byte);
    return;
  }
  const std::string_view word = without_leading_spaces(held_);
  if (word == "parameter") return enter(State::kCall);
  const bool closes_block = is_word_of_block(word);
  end_call();
  enter(closes_block ? State::kDone : State::kBlock);
}

void OutputParser::release_newlines(size_t num) {
  if (!is_at_start_ || state_ == State::kValue) emit(std::string(num, '\n'));
  num_newlines_ = 0;
}

void OutputParser::emit(std::string_view text) {
  if (text.empty()) return;
  if (state_ == State::kReasoning || state_ == State::kAnswer) {
    is_at_start_ = false;
    delta(state_ == State::kReasoning ? OutputDelta::Kind::kReasoning : OutputDelta::Kind::kContent).text += text;
  } else if (is_string_value_) {
    emit_arguments(text);
  } else {
    delta(OutputDelta::Kind::kCallArguments).text += text;
  }
}

void OutputParser::emit_arguments(std::string_view text) {
  append_json_escaped(text, delta(OutputDelta::Kind::kCallArguments).text);
}

// The delta to append to: the last one, if it is of this kind.
OutputDelta& OutputParser::delta(OutputDelta::Kind kind) {
  const bool is_of_call = kind != OutputDelta::Kind::kReasoning && kind != OutputDelta::Kind::kContent;
  const int call_index = is_of_call ? num_calls_ - 1 : -1;
  if (deltas_->empty() || deltas_->back().kind != kind || deltas_->back().call_index != call_index) {
    deltas_->push_back({kind, {}, call_index, {}, {}});
  }
  return deltas_->back();
}

void OutputParser::enter(State state) {
  state_ = state;
  held_.clear();
  num_newlines_ = 0;
}

void OutputParser::begin_call() {
  held_.pop_back();
  ++num_calls_;
  is_inside_call_ = true;
  has_parameters_ = false;
  OutputDelta& begin = delta(OutputDelta::Kind::kCallBegin);
  begin.call_id = options_.call_id_prefix + std::to_string(begin.call_index);
  begin.call_name = held_;
  enter(State::kCall);
}

void OutputParser::begin_parameter() {
  delta(OutputDelta::Kind::kCallArguments).text += has_parameters_ ? ", \"" : "{\"";
  has_parameters_ = true;
  enter(State::kKey);
}

void OutputParser::end_call() {
  delta(OutputDelta::Kind::kCallArguments).text += has_parameters_ ? "}" : "{}";
  delta(OutputDelta::Kind::kCallEnd);
  is_inside_call_ = false;
}

ParsedOutput parse_output(std::string_view text, const OutputParserOptions& options) {
  OutputParser parser(options);
  std::vector<OutputDelta> deltas;
  parser.push(text, deltas);
  parser.finish(deltas);
  ParsedOutput output;
  for (const OutputDelta& delta : deltas) {
    switch (delta.kind) {
      case OutputDelta::Kind::kReasoning:
        output.reasoning += delta.text;
        break;
      case OutputDelta::Kind::kContent:
        output.content += delta.text;
        break;
      case OutputDelta::Kind::kCallBegin:
        output.calls.push_back({delta.call_id, delta.call_name, {}});
        break;
      case OutputDelta::Kind::kCallArguments:
        output.calls.back().arguments += delta.text;
        break;
      case OutputDelta::Kind::kCallEnd:
        break;
    }
  }
  if (parser.is_inside_call()) output.calls.pop_back();
  return output;
}

}  // namespace deepinfer
