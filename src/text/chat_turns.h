// Turns: the messages of a conversation after tool results have been merged into the user's messages.
//
// Turns point into the messages they come from, which have to outlive them.
#pragma once

#include <optional>
#include <vector>

#include "text/chat_request.h"

namespace deepinfer {

// One thing a user turn consists of; blocks are joined by an empty line.
struct ChatBlock {
  const ChatMessage* tool_result = nullptr;  // a whole tool message, or
  const ContentPart* part = nullptr;         // one part of a user message
};

struct ChatTurn {
  Role role;                      // never kTool
  const ChatMessage* message;     // the first of those merged
  std::vector<ChatBlock> blocks;  // user turns only
  std::optional<ChatTask> task;
};

// Merges tool results and consecutive user messages, and puts the results of parallel calls in the order of the calls.
std::vector<ChatTurn> make_turns(const std::vector<ChatMessage>& messages);

}  // namespace deepinfer
