#include "text/chat_turns.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

ChatMessage user(const std::string& text, std::optional<ChatTask> task = std::nullopt) {
  return {.role = Role::kUser, .content = {{ContentPart::Kind::kText, text}}, .task = task};
}

ChatMessage tool(const std::string& id) { return {.role = Role::kTool, .content = {}, .tool_call_id = id}; }

ChatMessage assistant(const std::vector<std::string>& call_ids) {
  ChatMessage message{.role = Role::kAssistant};
  for (const std::string& id : call_ids) message.tool_calls.push_back({id, "f", {}});
  return message;
}

// "U[text #id ...]" for user turns with ! behind a task, one letter for the others.
std::string describe(const std::vector<ChatMessage>& messages) {
  std::string out;
  for (const ChatTurn& turn : make_turns(messages)) {
    if (turn.role != Role::kUser) {
      out += turn.role == Role::kAssistant ? "A" : turn.role == Role::kSystem ? "S" : "L";
      continue;
    }
    out += "U[";
    for (const ChatBlock& block : turn.blocks) {
      out += block.part != nullptr ? block.part->text + " " : "#" + block.tool_result->tool_call_id + " ";
    }
    out += turn.task ? "]!" : "]";
  }
  return out;
}

TEST(ChatTurns, UserAndToolMessagesInARowBecomeOneTurn) {
  EXPECT_EQ(describe({user("a"), user("b"), assistant({}), user("c")}), "U[a b ]AU[c ]");
  EXPECT_EQ(describe({user("a"), assistant({"x"}), tool("x"), user("b"), tool("y")}), "U[a ]AU[#x b #y ]");
  EXPECT_EQ(describe({tool("x")}), "U[#x ]");
}

TEST(ChatTurns, ATaskClosesATurnToWordsButNotToResults) {
  EXPECT_EQ(describe({user("a", ChatTask::kTitle), user("b")}), "U[a ]!U[b ]");
  EXPECT_EQ(describe({user("a", ChatTask::kTitle), tool("x")}), "U[a #x ]!");
  EXPECT_EQ(describe({user("a"), user("b", ChatTask::kTitle)}), "U[a b ]") << "an absorbed task is lost";
}

TEST(ChatTurns, ResultsFollowTheOrderOfTheCalls) {
  EXPECT_EQ(describe({assistant({"a", "b", "c"}), tool("c"), user("x"), tool("a"), tool("b")}), "AU[#a x #b #c ]");
  EXPECT_EQ(describe({assistant({"a", "b"}), tool("b"), tool("?"), tool("a")}), "AU[#? #a #b ]")
      << "an unknown call counts as the first";
  EXPECT_EQ(describe({tool("b"), tool("a")}), "U[#b #a ]") << "no calls, no order";
  EXPECT_EQ(describe({assistant({"a", "b"}), tool("b"), assistant({"b", "a"}), tool("a"), tool("b")}),
            "AU[#b ]AU[#b #a ]");
}

}  // namespace
}  // namespace deepinfer
