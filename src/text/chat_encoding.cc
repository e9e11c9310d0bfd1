#include "text/chat_encoding.h"

#include "text/chat_markers.h"
#include "text/chat_turns.h"

namespace deepinfer {
namespace {

constexpr std::string_view kBlockSeparator = "\n\n";

constexpr std::string_view kToolsHead =
    R"(## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜ calls>" block like the following:

<｜DSML｜ calls>
<｜DSML｜ invoke name="$TOOL_NAME">
<｜DSML｜ parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜ parameter>
...
</｜DSML｜ invoke>
<｜DSML｜ invoke name="$TOOL_NAME2">
...
</｜DSML｜ invoke>
</｜DSML｜ calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

)";

constexpr std::string_view kToolsTail =
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";

constexpr std::string_view kResponseFormatHead =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

std::string_view task_marker(ChatTask task) {
  switch (task) {
    case ChatTask::kAction:
      return "<｜action｜>";
    case ChatTask::kQuery:
      return "<｜query｜>";
    case ChatTask::kAuthority:
      return "<｜authority｜>";
    case ChatTask::kDomain:
      return "<｜domain｜>";
    case ChatTask::kTitle:
      return "<｜title｜>";
    case ChatTask::kReadUrl:
      return "<｜read_url｜>";
  }
  DI_CHECK(false, "task {} has no marker", static_cast<int>(task));
  return {};
}

class Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, const ChatRequest& request);

  Result<EncodedPrompt> encode();

 private:
  void add_part(const ContentPart& part);
  void add_parts(const std::vector<ContentPart>& parts);
  void add_opening();
  void add_body(size_t i);
  void add_system(size_t i);
  void add_user(const ChatTurn& turn);
  void add_assistant(size_t i);
  void add_tool_call(const ToolCall& call);
  void add_transition(size_t i);

  const ChatRequest& request_;
  std::vector<ChatTurn> turns_;
  bool drops_thinking_;
  // The last user turn or system turn other than the first: reasoning before it may be dropped. -1 if there is none.
  ptrdiff_t last_question_ = -1;
  PromptBuilder builder_;
};

Encoder::Encoder(const Tokenizer& tokenizer, const ChatRequest& request)
    : request_(request),
      turns_(make_turns(request.messages)),
      drops_thinking_(request.drop_thinking),
      builder_(tokenizer) {
  for (const ChatMessage& message : request.messages) {
    if (!message.tools.empty()) drops_thinking_ = false;
  }
  for (size_t i = 0; i < turns_.size(); ++i) {
    const bool is_later_system = turns_[i].role == Role::kSystem && i > 0;
    if (turns_[i].role == Role::kUser || is_later_system) last_question_ = static_cast<ptrdiff_t>(i);
  }
}

Result<EncodedPrompt> Encoder::encode() {
  builder_.add_control(kBeginOfSentence);
  for (size_t i = 0; i < turns_.size(); ++i) {
    if (i == 0) add_opening();
    add_body(i);
    add_transition(i);
  }
  return builder_.finish();
}

void Encoder::add_part(const ContentPart& part) {
  if (part.kind == ContentPart::Kind::kImage) return builder_.add_image(part.text);
  builder_.add_text(part.text);
}

void Encoder::add_parts(const std::vector<ContentPart>& parts) {
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) builder_.add_template(kBlockSeparator);
    add_part(parts[i]);
  }
}

// Thinking mode opens with the system marker even when there is no system message.
void Encoder::add_opening() {
  if (request_.is_thinking || turns_[0].role == Role::kSystem) builder_.add_control(kSystemMarker);
  if (!request_.is_thinking) return;
  builder_.add_template(
      fmt::format("Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n",
                  request_.reasoning_effort));
}

void Encoder::add_body(size_t i) {
  const ChatTurn& turn = turns_[i];
  switch (turn.role) {
    case Role::kSystem:
      return add_system(i);
    case Role::kUser:
      return add_user(turn);
    case Role::kAssistant:
      return add_assistant(i);
    case Role::kLatestReminder:
      builder_.add_control(kLatestReminderMarker);
      return add_parts(turn.message->content);
    case Role::kTool:
      DI_CHECK(false, "turn {} is a tool message that was not merged", i);
  }
}

void Encoder::add_system(size_t i) {
  const ChatMessage& message = *turns_[i].message;
  if (i > 0) builder_.add_control(kSystemMarker);
  add_parts(message.content);
  if (!message.tools.empty()) {
    builder_.add_template(kBlockSeparator);
    builder_.add_template(kToolsHead);
    for (size_t t = 0; t < message.tools.size(); ++t) {
      if (t > 0) builder_.add_template("\n");
      builder_.add_text(message.tools[t]);
    }
    builder_.add_template(kToolsTail);
  }
  if (!message.response_format.empty()) {
    builder_.add_template(kBlockSeparator);
    builder_.add_template(kResponseFormatHead);
    builder_.add_text(message.response_format);
  }
}

void Encoder::add_user(const ChatTurn& turn) {
  builder_.add_control(kUserMarker);
  for (size_t i = 0; i < turn.blocks.size(); ++i) {
    if (i > 0) builder_.add_template(kBlockSeparator);
    const ChatBlock& block = turn.blocks[i];
    if (block.tool_result == nullptr) {
      add_part(*block.part);
      continue;
    }
    builder_.add_template("<tool_result>");
    add_parts(block.tool_result->content);
    builder_.add_template("</tool_result>");
  }
}

// The marker that opens the reasoning belongs to the transition of the turn before.
void Encoder::add_assistant(size_t i) {
  const ChatMessage& message = *turns_[i].message;
  const bool follows_task = i > 0 && turns_[i - 1].task.has_value();
  const bool is_kept = !drops_thinking_ || static_cast<ptrdiff_t>(i) > last_question_;
  if (request_.is_thinking && !follows_task && is_kept) {
    builder_.add_text(message.reasoning_content);
    builder_.add_control(kThinkEnd);
  }
  add_parts(message.content);
  if (!message.tool_calls.empty()) {
    builder_.add_template("\n\n<｜DSML｜ calls>\n");
    for (const ToolCall& call : message.tool_calls) add_tool_call(call);
    builder_.add_template("</｜DSML｜ calls>");
  }
  if (!message.is_prefix) builder_.add_control(kEndOfSentence);
}

// A call without parameters has an empty line between its tags.
void Encoder::add_tool_call(const ToolCall& call) {
  builder_.add_template("<｜DSML｜ invoke name=\"");
  builder_.add_text(call.name);
  builder_.add_template("\">\n");
  for (const ToolCall::Parameter& parameter : call.parameters) {
    builder_.add_template("<｜DSML｜ parameter name=\"");
    builder_.add_text(parameter.name);
    builder_.add_template(parameter.is_string ? "\" string=\"true\">" : "\" string=\"false\">");
    builder_.add_text(parameter.value);
    builder_.add_template("</｜DSML｜ parameter>\n");
  }
  builder_.add_template(call.parameters.empty() ? "\n</｜DSML｜ invoke>\n" : "</｜DSML｜ invoke>\n");
}

void Encoder::add_transition(size_t i) {
  const ChatTurn& turn = turns_[i];
  if (i + 1 < turns_.size()) {
    const Role next = turns_[i + 1].role;
    if (next != Role::kAssistant && next != Role::kLatestReminder) return;
  }
  if (turn.task) {
    if (*turn.task == ChatTask::kAction) {
      builder_.add_control(kAssistantMarker);
      builder_.add_control(request_.is_thinking ? kThinkBegin : kThinkEnd);
    }
    return builder_.add_control(task_marker(*turn.task));
  }
  if (turn.role != Role::kUser && !(turn.role == Role::kSystem && i > 0)) return;
  const bool thinks = request_.is_thinking && (!drops_thinking_ || static_cast<ptrdiff_t>(i) >= last_question_);
  builder_.add_control(kAssistantMarker);
  builder_.add_control(thinks ? kThinkBegin : kThinkEnd);
}

}  // namespace

Result<EncodedPrompt> encode_chat(const Tokenizer& tokenizer, const ChatRequest& request) {
  return Encoder(tokenizer, request).encode();
}

}  // namespace deepinfer
