// ChatRequest: a conversation in plain values, and the reader that makes one from OpenAI style JSON.
//
// The reader settles everything that is a matter of the request's form: defaults, aliases, where tools are attached,
// how arguments are spelled. What is missing, malformed or unsupported is refused with its path
// (messages[2].content[0]). Members it does not know are left to others (sampling settings and the like). Turning this
// into tokens is chat_encoding.h. Pure function, any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer {

enum class Role { kSystem, kUser, kAssistant, kTool, kLatestReminder };

// The quick tasks, each a control token behind the message that asks for it.
enum class ChatTask { kAction, kQuery, kAuthority, kDomain, kTitle, kReadUrl };

struct ContentPart {
  enum class Kind { kText, kImage };

  Kind kind = Kind::kText;
  std::string text;  // of an image: where it is (its URL, possibly with the data in it)
};

struct ToolCall {
  struct Parameter {
    std::string name;
    bool is_string = true;  // then `value` is the text itself, else JSON
    std::string value;
  };

  std::string id;
  std::string name;
  std::vector<Parameter> parameters;
};

struct ChatMessage {
  Role role = Role::kUser;
  std::vector<ContentPart> content;
  std::string reasoning_content;     // assistant
  std::vector<ToolCall> tool_calls;  // assistant
  std::string tool_call_id;          // tool
  std::vector<std::string> tools;    // system: the function objects as JSON
  std::string response_format;       // system: as JSON, empty for none
  std::optional<ChatTask> task;
  bool is_prefix = false;  // assistant: the message is to be continued, so no end of sentence
};

enum class ToolChoice { kAuto, kNone, kRequired, kNamed };

struct ChatRequest {
  std::vector<ChatMessage> messages;
  bool is_thinking = true;
  int reasoning_effort = 75;  // 1 .. 100
  bool drop_thinking = true;  // leave out the reasoning of turns before the last user message
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string tool_choice_name;  // kNamed
};

Result<ChatRequest> parse_chat_request(std::string_view json);

}  // namespace deepinfer
