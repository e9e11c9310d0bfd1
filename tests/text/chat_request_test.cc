#include "text/chat_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deepinfer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ChatRequest parse(const std::string& json) {
  Result<ChatRequest> request = parse_chat_request(json);
  EXPECT_TRUE(request.ok()) << request.status().message();
  return request.ok() ? std::move(request).value() : ChatRequest();
}

std::string refusal(const std::string& json) {
  const Result<ChatRequest> request = parse_chat_request(json);
  return request.ok() ? "accepted" : request.status().message();
}

std::string with_messages(const std::string& messages, const std::string& more = "") {
  return "{\"messages\":[" + messages + "]" + more + "}";
}

const std::string kHello = R"({"role":"user","content":"hello"})";

ChatRequest with(const std::string& more) { return parse(with_messages(kHello, "," + more)); }

TEST(ChatRequest, ThinksWithEffort75UnlessToldOtherwise) {
  const ChatRequest request = parse(with_messages(kHello));
  EXPECT_TRUE(request.is_thinking);
  EXPECT_EQ(request.reasoning_effort, 75);
  EXPECT_TRUE(request.drop_thinking);
  ASSERT_EQ(request.messages.size(), 1u);
  EXPECT_EQ(request.messages[0].role, Role::kUser);
  ASSERT_EQ(request.messages[0].content.size(), 1u);
  EXPECT_EQ(request.messages[0].content[0].text, "hello");
}

TEST(ChatRequest, EffortIsANameOrANumber) {
  const std::pair<const char*, int> efforts[] = {
      {"\"low\"", 50},  {"\"minimal\"", 50}, {"\"medium\"", 75}, {"\"high\"", 75}, {"\"xhigh\"", 75},
      {"\"max\"", 100}, {"\"ultra\"", 100},  {"1", 1},           {"100", 100},     {"42", 42}};
  for (const auto& [effort, budget] : efforts) {
    EXPECT_EQ(with(std::string("\"reasoning_effort\":") + effort).reasoning_effort, budget) << effort;
  }
  for (const char* effort : {"0", "101", "\"most\"", "1.5", "true", "[]"}) {
    EXPECT_THAT(refusal(with_messages(kHello, std::string(",\"reasoning_effort\":") + effort)),
                HasSubstr(std::string("reasoning_effort is ") + effort));
  }
}

TEST(ChatRequest, ThinkingIsSwitchedOffByTypeOrEffort) {
  EXPECT_FALSE(with(R"("thinking":{"type":"disabled"})").is_thinking);
  EXPECT_TRUE(with(R"("thinking":{"type":"enabled"})").is_thinking);
  EXPECT_FALSE(with(R"("reasoning_effort":"none")").is_thinking);
  EXPECT_THAT(refusal(with_messages(kHello, R"(,"thinking":{"type":"maybe"})")),
              HasSubstr("thinking.type is \"maybe\""));
}

TEST(ChatRequest, ToolsAndFormatGoToTheSystemMessage) {
  const std::string tools = R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"b":1,"a":2.0}}}])";
  const ChatRequest without_system = parse(with_messages(kHello, tools));
  ASSERT_EQ(without_system.messages.size(), 2u);
  EXPECT_EQ(without_system.messages[0].role, Role::kSystem);
  EXPECT_THAT(without_system.messages[0].tools, ElementsAre(R"({"name": "f", "parameters": {"b": 1, "a": 2.0}})"));

  const ChatRequest with_system = parse(with_messages(R"({"role":"developer","content":"s"},)" + kHello,
                                                      R"(,"response_format":{"type":"json_object"})" + tools));
  ASSERT_EQ(with_system.messages.size(), 2u);
  EXPECT_EQ(with_system.messages[0].role, Role::kSystem);
  EXPECT_EQ(with_system.messages[0].tools.size(), 1u);
  EXPECT_EQ(with_system.messages[0].response_format, R"({"type": "json_object"})");
  EXPECT_EQ(with(R"("response_format":{"type":"text"})").messages.size(), 1u);
  EXPECT_EQ(parse(with_messages(kHello, tools + R"(,"tool_choice":"none")")).messages.size(), 1u);
}

TEST(ChatRequest, ToolChoiceIsRead) {
  EXPECT_EQ(with(R"("tool_choice":"auto")").tool_choice, ToolChoice::kAuto);
  EXPECT_EQ(with(R"("tool_choice":"required")").tool_choice, ToolChoice::kRequired);
  const ChatRequest named = with(R"("tool_choice":{"type":"function","function":{"name":"f"}})");
  EXPECT_EQ(named.tool_choice, ToolChoice::kNamed);
  EXPECT_EQ(named.tool_choice_name, "f");
  EXPECT_THAT(refusal(with_messages(kHello, R"(,"tool_choice":"some")")), HasSubstr("tool_choice is \"some\""));
}

ToolCall call_with(const std::string& arguments) {
  const ChatRequest request = parse(with_messages(
      R"({"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f","arguments":)" + arguments + "}}]}"));
  return request.messages.at(0).tool_calls.at(0);
}

std::string describe(const ToolCall& call) {
  std::string out;
  for (const ToolCall::Parameter& p : call.parameters) out += p.name + (p.is_string ? "='" : "=") + p.value + "|";
  return out;
}

TEST(ChatRequest, ArgumentsMayBeEncodedOnceTwiceOrNotAtAll) {
  EXPECT_EQ(describe(call_with(R"("{\"a\": \"x\\ny\", \"n\": [1, 2.50, null]}")")), "a='x\ny|n=[1, 2.5, null]|");
  EXPECT_EQ(describe(call_with(R"("\"{\\\"a\\\": true}\"")")), "a=true|");
  EXPECT_EQ(describe(call_with(R"({"z": 1, "a": {"k": "v"}})")), "z=1|a={\"k\": \"v\"}|");
  EXPECT_EQ(describe(call_with(R"("{}")")), "");
}

TEST(ChatRequest, ArgumentsThatAreNoObjectBecomeOneParameter) {
  EXPECT_EQ(describe(call_with(R"("[1, 2]")")), "arguments='[1, 2]|");
  EXPECT_EQ(describe(call_with(R"("not json")")), "arguments='not json|");
  EXPECT_EQ(describe(call_with(R"("")")), "arguments='|");
  EXPECT_EQ(describe(call_with("[1, 2]")), "arguments=[1, 2]|");
  EXPECT_EQ(describe(call_with(R"("\"\\\"{}\\\"\"")")), "arguments='\"\\\"{}\\\"\"|") << "encoded three times";
}

TEST(ChatRequest, ContentMayBeAListOfTextsAndImages) {
  const ChatRequest request = parse(with_messages(
      R"({"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"http://x"}},)"
      R"({"type":"image","image":"data:y"}]},)"
      R"({"role":"tool","tool_call_id":"c","content":[{"type":"text","text":"r"},{"type":"audio"}]})"));
  const std::vector<ContentPart>& user = request.messages[0].content;
  ASSERT_EQ(user.size(), 3u);
  EXPECT_EQ(user[1].kind, ContentPart::Kind::kImage);
  EXPECT_EQ(user[1].text, "http://x");
  EXPECT_EQ(user[2].text, "data:y");
  EXPECT_EQ(request.messages[1].tool_call_id, "c");
  EXPECT_EQ(request.messages[1].content.at(1).text, "[Unsupported audio]");
}

TEST(ChatRequest, PrefixAndTaskAreRead) {
  const ChatRequest request = parse(
      with_messages(R"({"role":"user","content":"q","task":"title"},{"role":"assistant","content":"a","prefix":true},)"
                    R"({"role":"assistant","content":null,"wo_eos":true,"reasoning_content":"r"})"));
  EXPECT_EQ(request.messages[0].task, ChatTask::kTitle);
  EXPECT_TRUE(request.messages[1].is_prefix);
  EXPECT_TRUE(request.messages[2].is_prefix);
  EXPECT_EQ(request.messages[2].reasoning_content, "r");
  EXPECT_TRUE(request.messages[2].content.empty());
}

TEST(ChatRequest, RefusalsNameThePlace) {
  EXPECT_THAT(refusal("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("[]"), HasSubstr("messages is missing or empty"));
  EXPECT_THAT(refusal(with_messages("")), HasSubstr("messages is missing or empty"));
  EXPECT_THAT(refusal(with_messages("1")), HasSubstr("messages[0] is 1"));
  EXPECT_THAT(refusal(with_messages(kHello + R"(,{"role":"king","content":""})")),
              HasSubstr("messages[1].role is \"king\""));
  EXPECT_THAT(refusal(with_messages(R"({"role":"user"})")), HasSubstr("messages[0].content is missing"));
  EXPECT_THAT(refusal(with_messages(R"({"role":"user","content":7})")), HasSubstr("messages[0].content is 7"));
  EXPECT_THAT(refusal(with_messages(R"({"role":"user","content":[{"type":"video_url"}]})")),
              HasSubstr("messages[0].content[0].type is \"video_url\""));
  EXPECT_THAT(refusal(with_messages(R"({"role":"user","content":["x"]})")),
              HasSubstr("messages[0].content[0].type is missing"));
  EXPECT_THAT(refusal(with_messages(R"({"role":"user","content":"","task":"dance"})")), HasSubstr("task is \"dance\""));
  EXPECT_THAT(refusal(with_messages(R"({"role":"assistant","tool_calls":[{"function":{"name":"f"}}]})")),
              HasSubstr("messages[0].tool_calls[0].function.arguments is missing"));
  EXPECT_THAT(refusal(with_messages(R"({"role":"assistant","tool_calls":[{}]})")),
              HasSubstr("messages[0].tool_calls[0].function is missing"));
  EXPECT_THAT(refusal(with_messages(kHello, R"(,"tools":[{"type":"web"}])")), HasSubstr("tools[0].type is \"web\""));
  EXPECT_THAT(refusal(with_messages(kHello, R"(,"tools":[{"type":"function","function":{}}])")),
              HasSubstr("tools[0].function.name is missing"));
}

}  // namespace
}  // namespace deepinfer
