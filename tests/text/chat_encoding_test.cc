#include "text/chat_encoding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "text/chat_markers.h"
#include "text/golden_tokenizer.h"
#include "text/json_text.h"
#include "text/random_text.h"
#include "text/small_tokenizer.h"

namespace deepinfer {
namespace {

using testing::HasSubstr;
using Ids = std::vector<int32_t>;

EncodedPrompt encode(const std::string& json) {
  const Result<ChatRequest> request = parse_chat_request(json);
  EXPECT_TRUE(request.ok()) << request.status().message();
  Result<EncodedPrompt> prompt = encode_chat(golden_tokenizer(), request.value());
  EXPECT_TRUE(prompt.ok()) << prompt.status().message();
  return std::move(prompt).value();
}

// For conversations without hostile text the prompt's ids are those of its text.
Ids ids_of(const std::string& json) {
  const EncodedPrompt prompt = encode(json);
  EXPECT_EQ(prompt.ids, golden_tokenizer().encode(prompt.text)) << prompt.text;
  return prompt.ids;
}

std::string text_of(const std::string& json) {
  const EncodedPrompt prompt = encode(json);
  EXPECT_EQ(prompt.ids, golden_tokenizer().encode(prompt.text)) << prompt.text;
  return prompt.text;
}

std::string chat(const std::string& messages) { return R"({"reasoning_effort":"none","messages":[)" + messages + "]}"; }
std::string thinking(const std::string& messages, const std::string& more = "") {
  return R"({"messages":[)" + messages + "]" + more + "}";
}

std::string say(const std::string& role, const std::string& text, const std::string& more = "") {
  std::string json = "{\"role\":\"" + role + "\",\"content\":\"";
  append_json_escaped(text, json);
  return json + "\"" + more + "}";
}

const std::string kReasoningR1 = ",\"reasoning_content\":\"r1\"";

Ids effort_opening(int32_t number) {
  return {0,    128799, 77666, 288,  9504, 482,  28, 223, number, 343,   16801, 223,   19, 15,
          1457, 14,     270,   4077, 270,  1990, 14, 270, 850,    15146, 270,   22805, 868};
}

Ids join(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(ChatEncoding, ChatModeVectors) {
  EXPECT_EQ(ids_of(chat(say("user", "q"))), (Ids{0, 128803, 83, 128804, 128822}));
  EXPECT_EQ(ids_of(chat(say("user", "What is 2+2?"))),
            (Ids{0, 128803, 3085, 344, 223, 20, 13, 20, 33, 128804, 128822}));
  EXPECT_EQ(ids_of(chat(say("system", "You are a helpful assistant.") + "," + say("user", "Hello") + "," +
                        say("assistant", "Hi there! How can I help you?") + "," +
                        say("user", "What is the capital of France?") + "," +
                        say("assistant", "The capital of France is Paris."))),
            (Ids{0,    128799, 3476,   477,    260,  11502, 22896, 16,   128803, 19923, 128804, 128822, 23166, 1031,
                 3,    1730,   588,    342,    1694, 440,   33,    1,    128803, 3085,  344,    270,    6102,  294,
                 8760, 33,     128804, 128822, 671,  6102,  294,   8760, 344,    11111, 16,     1}));
}

TEST(ChatEncoding, ThinkingModeOpensWithTheEffort) {
  const std::pair<const char*, int32_t> efforts[] = {{"", 2402},
                                                     {",\"reasoning_effort\":\"low\"", 1328},
                                                     {",\"reasoning_effort\":\"max\"", 1457},
                                                     {",\"reasoning_effort\":25", 1069},
                                                     {",\"reasoning_effort\":42", 3180}};
  for (const auto& [more, number] : efforts) {
    EXPECT_EQ(ids_of(thinking(say("user", "q"), more)), join(effort_opening(number), {128803, 83, 128804, 128821}))
        << more;
  }
}

TEST(ChatEncoding, ReasoningBeforeTheLastQuestionIsDroppedUnlessAskedFor) {
  const std::string turns = say("user", "q1") + "," + say("assistant", "a1", kReasoningR1) + "," + say("user", "q2");
  EXPECT_EQ(ids_of(thinking(turns)),
            join(effort_opening(2402), {128803, 83, 19, 128804, 128822, 67, 19, 1, 128803, 83, 20, 128804, 128821}));
  EXPECT_EQ(ids_of(thinking(turns, ",\"drop_thinking\":false")),
            join(effort_opening(2402),
                 {128803, 83, 19, 128804, 128821, 84, 19, 128822, 67, 19, 1, 128803, 83, 20, 128804, 128821}));
}

TEST(ChatEncoding, ASystemMessageInTheMiddleCountsAsAQuestion) {
  EXPECT_EQ(ids_of(thinking(say("user", "q1") + "," + say("assistant", "a1", kReasoningR1) + "," +
                            say("system", "MID") + "," + say("user", "q2"))),
            join(effort_opening(2402),
                 {128803, 83, 19, 128804, 128822, 67, 19, 1, 128799, 103184, 128803, 83, 20, 128804, 128821}));
  EXPECT_THAT(
      text_of(thinking(say("user", "q1") + "," + say("assistant", "a1", kReasoningR1) + "," + say("system", "MID"))),
      testing::EndsWith(
          "<｜User｜>q1<｜Assistant｜></think>a1<｜end▁of▁sentence｜><｜System｜>MID<｜Assistant｜><think>"));
}

TEST(ChatEncoding, ReasoningAfterTheLastQuestionIsKeptAndMayBeEmpty) {
  EXPECT_THAT(text_of(thinking(say("user", "q") + "," + say("assistant", "a", kReasoningR1))),
              testing::EndsWith("<｜User｜>q<｜Assistant｜><think>r1</think>a<｜end▁of▁sentence｜>"));
  EXPECT_THAT(text_of(thinking(say("user", "q") + "," + say("assistant", "a"))),
              testing::EndsWith("<｜Assistant｜><think></think>a<｜end▁of▁sentence｜>"));
  EXPECT_THAT(text_of(chat(say("user", "q") + "," + say("assistant", "a", kReasoningR1))),
              testing::EndsWith("<｜Assistant｜></think>a<｜end▁of▁sentence｜>"));
}

TEST(ChatEncoding, APrefixIsLeftOpen) {
  EXPECT_THAT(text_of(chat(say("user", "q") + "," + say("assistant", "a", ",\"prefix\":true"))),
              testing::EndsWith("<｜Assistant｜></think>a"));
}

TEST(ChatEncoding, SystemMessagesAndReminders) {
  EXPECT_EQ(text_of(chat(say("system", "s"))), "<｜begin▁of▁sentence｜><｜System｜>s");
  EXPECT_EQ(text_of(chat(say("latest_reminder", "r") + "," + say("user", "q"))),
            "<｜begin▁of▁sentence｜><｜latest_reminder｜>r<｜User｜>q<｜Assistant｜></think>");
  EXPECT_EQ(text_of(chat(say("user", "q") + "," + say("latest_reminder", "r"))),
            "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></think><｜latest_reminder｜>r");
  EXPECT_EQ(text_of(chat(say("developer", "d") + "," + say("user", "q"))),
            "<｜begin▁of▁sentence｜><｜System｜>d<｜User｜>q<｜Assistant｜></think>");
}

TEST(ChatEncoding, TasksPutTheirTokenBehindTheMessage) {
  EXPECT_EQ(text_of(chat(say("user", "q", ",\"task\":\"title\""))), "<｜begin▁of▁sentence｜><｜User｜>q<｜title｜>");
  EXPECT_EQ(text_of(chat(say("user", "q", ",\"task\":\"action\""))),
            "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></think><｜action｜>");
  EXPECT_THAT(text_of(thinking(say("user", "q", ",\"task\":\"action\"") + "," + say("assistant", "a", kReasoningR1))),
              testing::EndsWith("<｜User｜>q<｜Assistant｜><think><｜action｜>a<｜end▁of▁sentence｜>"))
      << "no reasoning behind a task";
  for (const char* task : {"query", "authority", "domain", "read_url"}) {
    EXPECT_THAT(text_of(chat(say("user", "q", fmt::format(",\"task\":\"{}\"", task)))),
                testing::EndsWith(fmt::format("q<｜{}｜>", task)));
  }
}

TEST(ChatEncoding, ImagesBecomeOneTokenEachAndKeepTheirOrder) {
  const std::string image = R"({"type":"image_url","image_url":{"url":")";
  const std::string messages = R"({"role":"user","content":[{"type":"text","text":"a"},)" + image + R"(one"}},)" +
                               image + R"(two"}},{"type":"text","text":""}]},{"role":"tool","content":[)" + image +
                               R"(three"}}]})";
  const EncodedPrompt prompt = encode(chat(messages));
  EXPECT_EQ(prompt.text,
            "<｜begin▁of▁sentence｜><｜User｜>a\n\n<｜deepseek_image｜>\n\n<｜deepseek_image｜>\n\n\n\n"
            "<tool_result><｜deepseek_image｜></tool_result><｜Assistant｜></think>");
  EXPECT_EQ(std::count(prompt.ids.begin(), prompt.ids.end(), 129264), 3);
  EXPECT_THAT(prompt.image_locations, testing::ElementsAre("one", "two", "three"));
  EXPECT_EQ(ids_of(chat(R"({"role":"user","content":[{"type":"image"}]})")), (Ids{0, 128803, 129264, 128804, 128822}));
}

TEST(ChatEncoding, ToolResultsAreJoinedInTheOrderOfTheCalls) {
  const auto result = [](const char* id) {
    return fmt::format(R"({{"role":"tool","tool_call_id":"{0}","content":"result {0}"}})", id);
  };
  const std::string calls = R"({"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f","arguments":"{}"}},)"
                            R"({"id":"b","function":{"name":"f","arguments":"{}"}}]})";
  EXPECT_THAT(text_of(chat(say("user", "q") + "," + calls + "," + result("b") + "," + result("a"))),
              testing::EndsWith("<｜User｜><tool_result>result a</tool_result>\n\n<tool_result>result b</tool_result>"
                                "<｜Assistant｜></think>"));
}

const std::string kWeatherCall =
    R"({"role":"assistant","content":"","reasoning_content":"r1","tool_calls":[{"id":"c1","type":"function","function":)"
    R"({"name":"get_weather","arguments":"{\"city\": \"Paris\", \"days\": 3, \"units\": [\"C\", true, null]}"}}]})";

TEST(ChatEncoding, ToolCallsAreMarkup) {
  const std::string text = text_of(chat(say("user", "q") + "," + kWeatherCall));
  EXPECT_THAT(text, testing::EndsWith(
                        "</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get_weather\">\n"
                        "<｜DSML｜ parameter name=\"city\" string=\"true\">Paris</｜DSML｜ parameter>\n"
                        "<｜DSML｜ parameter name=\"days\" string=\"false\">3</｜DSML｜ parameter>\n"
                        "<｜DSML｜ parameter name=\"units\" string=\"false\">[\"C\", true, null]</｜DSML｜ parameter>\n"
                        "</｜DSML｜ invoke>\n</｜DSML｜ calls><｜end▁of▁sentence｜>"));
  const std::string empty = R"({"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{}"}}]})";
  EXPECT_THAT(text_of(chat(say("user", "q") + "," + empty)),
              HasSubstr("<｜DSML｜ invoke name=\"f\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"));
}

TEST(ChatEncoding, ToolCallTokensAreTheKnownOnes) {
  const Ids ids = ids_of(chat(say("user", "q") + "," + kWeatherCall + R"(,{"role":"tool","content":"7"})"));
  const auto contains = [&ids](const Ids& part) {
    return std::search(ids.begin(), ids.end(), part.begin(), part.end()) != ids.end();
  };
  EXPECT_TRUE(contains({128804, 128822, 271, 30,    128825, 10699, 1018,   30,    128825, 34756, 2329,
                        1281,   1133,   65,  50219, 3816,   30,    128825, 10767, 2329,   1281}));
  EXPECT_TRUE(contains({1718, 128825, 10767, 1018}));
  EXPECT_TRUE(contains({1718, 128825, 34756, 1018, 1718, 128825, 10699, 32, 1}));
  EXPECT_TRUE(contains({128803, 30, 72461, 46148, 32}));
}

// Parts of published prompts whose whole text is not at hand.
TEST(ChatEncoding, FragmentsOfPublishedPrompts) {
  const auto contains = [](const std::string& json, const Ids& part) {
    const Ids ids = ids_of(json);
    return std::search(ids.begin(), ids.end(), part.begin(), part.end()) != ids.end();
  };
  EXPECT_TRUE(contains(
      thinking(R"({"role":"user","content":[{"type":"text","text":"张图"},{"type":"image"},{"type":"text","text":)"
               R"("和第二张图"},{"type":"image"},{"type":"text","text":"中"}]})",
               ",\"reasoning_effort\":\"max\""),
      {2353, 1620, 271, 129264, 271, 110399, 2353, 1620, 271, 129264, 271, 525, 128804, 128821}));
  const std::string weather = R"({"role":"assistant","reasoning_content":"r","tool_calls":[{"id":"c","function":)"
                              R"({"name":"get_weather","arguments":"{\"location\": \"Beijing\"}"}}]})";
  EXPECT_TRUE(
      contains(thinking(say("user", "q") + "," + weather),
               {128822, 271,   30,     128825, 10699,  1018,  30,    128825, 34756,  2329,  1281,  1133, 65,     50219,
                3816,   30,    128825, 10767,  2329,   1281,  33182, 4,      3418,   1281,  11476, 3320, 121458, 1718,
                128825, 10767, 1018,   1718,   128825, 34756, 1018,  1718,   128825, 10699, 32,    1}));
}

TEST(ChatEncoding, ToolsBlockNamesTheFormatAndKeepsAllReasoning) {
  const std::string tools = R"(,"tools":[{"type":"function","function":{"name":"f","description":"é"}},)"
                            R"({"type":"function","function":{"name":"g"}}])";
  const std::string text = text_of(thinking(say("system", "s") + "," + say("user", "q1") + "," +
                                                say("assistant", "a1", kReasoningR1) + "," + say("user", "q2"),
                                            tools));
  EXPECT_THAT(text,
              HasSubstr("the more thorough the reasoning)\n\ns\n\n## Tools\n\nYou have access to a set of tools"));
  EXPECT_THAT(
      text,
      HasSubstr("\n\n### Available Tool Schemas\n\n{\"name\": \"f\", \"description\": \"é\"}\n{\"name\": \"g\"}\n\n"
                "You MUST strictly follow the above defined tool name and parameter schemas to invoke tool "
                "calls.\n<｜User｜>q1<｜Assistant｜><think>r1</think>a1"));
  const std::string alone = text_of(thinking(say("user", "q"), tools));
  EXPECT_THAT(alone, HasSubstr("thorough the reasoning)\n\n\n\n## Tools\n\n")) << "an empty system message was added";
}

TEST(ChatEncoding, ResponseFormatFollowsTheSystemTextAndTools) {
  EXPECT_EQ(text_of(R"({"reasoning_effort":"none","response_format":{"type":"json_object"},"messages":[)" +
                    say("user", "q") + "]}"),
            "<｜begin▁of▁sentence｜><｜System｜>\n\n## Response Format:\n\nYou MUST strictly adhere to the following "
            "schema to "
            "reply:\n{\"type\": \"json_object\"}<｜User｜>q<｜Assistant｜></think>");
}

// Whatever place a text has in a request, it must not bring control tokens with it.
TEST(ChatEncoding, HostileTextBringsNoControlTokens) {
  std::string hostile;
  for (const int32_t id : {0, 1, 2, 128799, 128803, 128804, 128821, 128822, 128825, 128828, 128829, 129264, 128805}) {
    hostile += golden_tokenizer().token_bytes(id);
  }
  const auto controls_of = [](const std::string& word) {
    std::string in_json;
    append_json_escaped(word, in_json);
    std::string in_arguments;
    append_json_escaped("{\"k" + in_json + "\": \"v" + in_json + "\", \"n\": [\"" + in_json + "\"]}", in_arguments);
    const std::string text = "\"content\":\"x" + in_json + "\"";
    const std::string request = "{\"tools\":[{\"function\":{\"name\":\"f" + in_json +
                                "\"}}],\"response_format\":{\"type\":\"json_object\",\"x\":\"" + in_json +
                                "\"},\"messages\":[{\"role\":\"system\"," + text + "},{\"role\":\"user\"," + text +
                                "},{\"role\":\"assistant\"," + text + ",\"reasoning_content\":\"r" + in_json +
                                "\",\"tool_calls\":[{\"id\":\"c\",\"function\":{\"name\":\"f" + in_json +
                                "\",\"arguments\":\"" + in_arguments + "\"}}]},{\"role\":\"tool\"," + text +
                                "},{\"role\":\"latest_reminder\"," + text + "},{\"role\":\"user\"," + text + "}]}";
    Ids controls;
    for (const int32_t id : encode(request).ids) {
      if (golden_tokenizer().is_control(id)) controls.push_back(id);
    }
    return controls;
  };
  const Ids expected = controls_of("harmless");
  EXPECT_GT(expected.size(), 20u);
  EXPECT_EQ(controls_of(hostile), expected);
}

TEST(ChatEncoding, OrdinaryTextGivesTheIdsOfThePlainEncoding) {
  RandomText random(11);
  for (int i = 0; i < 300; ++i) {
    const std::string json = thinking(say("system", random.text(10)) + "," + say("user", random.text(20)) + "," +
                                      say("assistant", random.text(20), ",\"reasoning_content\":\"x\"") + "," +
                                      say("user", random.text(20)));
    ids_of(json);
    ASSERT_FALSE(HasFailure()) << json;
  }
}

TEST(ChatEncoding, ALiteralImagePlaceholderIsRewrittenWithAsciiBars) {
  const EncodedPrompt prompt = encode(chat(say("user", "see <｜deepseek_image｜> and <｜deepseek_image｜>")));
  EXPECT_THAT(prompt.text, HasSubstr("<｜User｜>see <|deepseek_image|> and <|deepseek_image|><｜Assistant｜>"));
  EXPECT_TRUE(prompt.image_locations.empty());
  EXPECT_EQ(prompt.ids, golden_tokenizer().encode(prompt.text));
}

TEST(ChatEncoding, AMissingControlTokenIsNamedWhenItIsNeeded) {
  const Tokenizer tokenizer =
      small_tokenizer({kBeginOfSentence, kEndOfSentence, kUserMarker, kAssistantMarker, kThinkBegin, kThinkEnd});
  const auto message = [&tokenizer](const std::string& json) {
    const Result<EncodedPrompt> prompt = encode_chat(tokenizer, parse_chat_request(json).value());
    return prompt.ok() ? "fine" : prompt.status().message();
  };
  EXPECT_EQ(message(chat(say("user", "q"))), "fine");
  EXPECT_THAT(message(thinking(say("user", "q"))), HasSubstr("no control token <｜System｜>"));
  EXPECT_THAT(message(chat(say("user", "q") + "," + kWeatherCall)), HasSubstr("no control token ｜DSML｜"));
  EXPECT_THAT(message(chat(R"({"role":"user","content":[{"type":"image"}]})")), HasSubstr("<｜deepseek_image｜>"));
}

}  // namespace
}  // namespace deepinfer
