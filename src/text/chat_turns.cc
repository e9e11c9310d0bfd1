#include "text/chat_turns.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

namespace deepinfer {
namespace {

using OrderOfCalls = std::unordered_map<std::string_view, size_t>;

void append_blocks(const ChatMessage& message, std::vector<ChatBlock>& blocks) {
  if (message.role == Role::kTool) {
    blocks.push_back({.tool_result = &message});
    return;
  }
  for (const ContentPart& part : message.content) blocks.push_back({.part = &part});
}

std::vector<ChatTurn> merge(const std::vector<ChatMessage>& messages) {
  std::vector<ChatTurn> turns;
  for (const ChatMessage& message : messages) {
    const bool is_tool = message.role == Role::kTool;
    if (!is_tool && message.role != Role::kUser) {
      turns.push_back({message.role, &message, {}, message.task});
      continue;
    }
    // A task closes a user turn to further words of the user, but not to tool results. The task of a message that is
    // absorbed by an earlier one is lost.
    const bool joins = !turns.empty() && turns.back().role == Role::kUser && (is_tool || !turns.back().task);
    if (!joins) turns.push_back({Role::kUser, &message, {}, is_tool ? std::nullopt : message.task});
    append_blocks(message, turns.back().blocks);
  }
  return turns;
}

// Stable, and without moving the other blocks. A result of an unknown call counts as one of the first call.
void sort_tool_results(const OrderOfCalls& order, std::vector<ChatBlock>& blocks) {
  std::vector<ChatBlock> results;
  for (const ChatBlock& block : blocks) {
    if (block.tool_result != nullptr) results.push_back(block);
  }
  const auto place = [&order](const ChatBlock& block) {
    const auto found = order.find(block.tool_result->tool_call_id);
    return found == order.end() ? 0 : found->second;
  };
  std::stable_sort(results.begin(), results.end(),
                   [&place](const ChatBlock& a, const ChatBlock& b) { return place(a) < place(b); });
  auto next = results.begin();
  for (ChatBlock& block : blocks) {
    if (block.tool_result != nullptr) block = *next++;
  }
}

}  // namespace

std::vector<ChatTurn> make_turns(const std::vector<ChatMessage>& messages) {
  std::vector<ChatTurn> turns = merge(messages);
  OrderOfCalls order;
  for (ChatTurn& turn : turns) {
    if (turn.role == Role::kUser) sort_tool_results(order, turn.blocks);
    if (turn.role != Role::kAssistant || turn.message->tool_calls.empty()) continue;
    order.clear();
    for (size_t i = 0; i < turn.message->tool_calls.size(); ++i) {
      const std::string& id = turn.message->tool_calls[i].id;
      if (!id.empty()) order[id] = i;
    }
  }
  return turns;
}

}  // namespace deepinfer
