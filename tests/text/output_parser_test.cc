#include "text/output_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/chat_encoding.h"
#include "text/golden_tokenizer.h"
#include "text/json_text.h"
#include "text/random_text.h"
#include "text/strict_output_parser.h"
#include "text/utf8.h"

namespace deepinfer {
namespace {

// One line for each run of deltas of a kind; a call shows as id:name(arguments) with . when it was closed.
std::string describe(const std::vector<OutputDelta>& deltas) {
  std::string out;
  const OutputDelta* last = nullptr;
  for (const OutputDelta& delta : deltas) {
    const bool continues = last != nullptr && last->kind == delta.kind;
    switch (delta.kind) {
      case OutputDelta::Kind::kReasoning:
        out += continues ? "" : "R:";
        break;
      case OutputDelta::Kind::kContent:
        out += continues ? "" : "C:";
        break;
      case OutputDelta::Kind::kCallBegin:
        out += " " + delta.call_id + ":" + delta.call_name + "(";
        break;
      case OutputDelta::Kind::kCallArguments:
        break;
      case OutputDelta::Kind::kCallEnd:
        out += ").";
        break;
    }
    out += delta.text;
    last = &delta;
  }
  return out;
}

std::string parse_cut_at(const std::string& text, const std::vector<size_t>& cuts, bool is_thinking) {
  OutputParser parser({.is_thinking = is_thinking});
  std::vector<OutputDelta> deltas;
  size_t begin = 0;
  for (const size_t cut : cuts) {
    parser.push(std::string_view(text).substr(begin, cut - begin), deltas);
    begin = cut;
  }
  parser.push(std::string_view(text).substr(begin), deltas);
  parser.finish(deltas);
  return describe(deltas);
}

// Parses at once, byte by byte and cut in two at every place; all have to agree.
std::string parse(const std::string& text, bool is_thinking = false) {
  const std::string whole = parse_cut_at(text, {}, is_thinking);
  std::vector<size_t> every;
  for (size_t i = 0; i <= text.size(); ++i) {
    every.push_back(i);
    EXPECT_EQ(parse_cut_at(text, {i}, is_thinking), whole) << "cut at " << i;
  }
  EXPECT_EQ(parse_cut_at(text, every, is_thinking), whole);
  return whole;
}

std::string think(const std::string& text) { return parse(text, true); }

TEST(OutputParser, SeparatesReasoningFromTheAnswer) {
  EXPECT_EQ(think("because</think>therefore"), "R:becauseC:therefore");
  EXPECT_EQ(think("\n\nbecause\n\n</think>\n\ntherefore\n"), "R:becauseC:therefore\n");
  EXPECT_EQ(think("</think>x"), "C:x");
  EXPECT_EQ(think("cut sho"), "R:cut sho");
  EXPECT_EQ(think("cut</thi"), "R:cut</thi") << "what was held back comes out at the end";
  EXPECT_EQ(parse("\n\nx\n\ny\n"), "C:x\n\ny\n");
  EXPECT_EQ(parse("x</think>y</think>"), "C:xy") << "a further end of reasoning is skipped";
  EXPECT_EQ(parse(""), "");
}

TEST(OutputParser, TextThatOnlyResemblesAMarkerStaysText) {
  for (const char* text : {"a < b", "a</thinking>", "<｜", "x\n\n<｜DSML｜", "x\n\n<｜DSML｜ callsign>", "<<｜DSML｜>",
                           "</｜DSML｜ calls>", "<｜〜", "invoke name=\"f\"", "<\n</", "</</</think"}) {
    EXPECT_EQ(parse(text), std::string("C:") + text);
  }
}

TEST(OutputParser, LineFeedsBeforeABlockBelongToIt) {
  EXPECT_EQ(parse("x\n\n<｜DSML｜ calls>\n</｜DSML｜ calls>"), "C:x");
  EXPECT_EQ(parse("x\n\n\n\ny"), "C:x\n\n\n\ny");
  EXPECT_EQ(parse("\n\n<｜DSML｜ calls>\n</｜DSML｜ calls>\n\nafter"), "") << "what follows the block is dropped";
}

std::string call(const std::string& parameters, const std::string& name = "f") {
  return "<｜DSML｜ invoke name=\"" + name + "\">\n" + parameters + "</｜DSML｜ invoke>\n";
}
std::string block(const std::string& calls) { return "\n\n<｜DSML｜ calls>\n" + calls + "</｜DSML｜ calls>"; }
std::string parameter(const std::string& name, const std::string& value, bool is_string = true) {
  return "<｜DSML｜ parameter name=\"" + name + (is_string ? "\" string=\"true\">" : "\" string=\"false\">") + value +
         "</｜DSML｜ parameter>\n";
}

TEST(OutputParser, StreamsCallsWithTheirArguments) {
  EXPECT_EQ(parse("x" + block(call(parameter("a", "b") + parameter("n", "[1, 2]", false)) + call("\n", "g"))),
            R"(C:x call_0:f({"a": "b", "n": [1, 2]}). call_1:g({}).)");
  EXPECT_EQ(think("r" + block(call(parameter("a", "42")))), R"(R:r call_0:f({"a": "42"}).)")
      << "a call inside reasoning";
  EXPECT_EQ(think("r</think>c" + block(call(parameter("a", "")))), R"(R:rC:c call_0:f({"a": ""}).)");
}

TEST(OutputParser, EscapesStringsAndKeysAsJson) {
  EXPECT_EQ(parse(block(call(parameter("k\\", "a\"b\\c\n\td\x01 <e> </f> 你好\n")))),
            R"( call_0:f({"k\\": "a\"b\\c\n\td\u0001 <e> </f> 你好\n"}).)");
}

TEST(OutputParser, ToleratesOtherSpellings) {
  const std::string expected = R"(C:x call_0:f({"a": "b"}).)";
  const std::string inside = call(parameter("a", "b"));
  for (const char* word : {" calls", "calls", " call", "call", "tool_calls", " tool_calls", "function_calls"}) {
    EXPECT_EQ(parse("x\n\n<｜DSML｜" + std::string(word) + ">\n" + inside + "</｜DSML｜" + word + ">after"), expected);
  }
  EXPECT_EQ(parse("x\n\n" + inside), expected) << "no block at all";
  EXPECT_EQ(parse("x\n\n<｜DSML｜tool_calls><｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"a\" string=\"true\">b"
                  "</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>"),
            expected);
}

TEST(OutputParser, ToleratesWhatTheModelForgotToClose) {
  const std::string open_value = "<｜DSML｜ parameter name=\"a\" string=\"true\">b";
  EXPECT_EQ(parse(block(call(open_value + "\n" + parameter("c", "d")))), R"( call_0:f({"a": "b", "c": "d"}).)")
      << "a parameter ended by the next";
  EXPECT_EQ(
      parse(block(call(open_value + "\n\n<｜DSML｜ parameter name=\"c\" string=\"false\">1</｜DSML｜ parameter>\n"))),
      R"( call_0:f({"a": "b\n", "c": 1}).)")
      << "only the line feed between tags goes";
  EXPECT_EQ(parse(block(call(open_value) + call("\n", "g"))), R"( call_0:f({"a": "b"}). call_1:g({}).)")
      << "a parameter ended by the end of its call";
  EXPECT_EQ(parse("\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n" + open_value + "</｜DSML｜ calls>after"),
            R"( call_0:f({"a": "b"}).)")
      << "a parameter ended by the end of the block";
  EXPECT_EQ(parse("\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n" + open_value + "\n" + call("\n", "g")),
            R"( call_0:f({"a": "b"}). call_1:g({}).)")
      << "a parameter ended by the next call";
  EXPECT_EQ(parse("\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n" + call("\n", "g")),
            R"( call_0:f({}). call_1:g({}).)");
  EXPECT_EQ(parse(block(call("<｜DSML｜ parameter name=\"a\">b</｜DSML｜ parameter>\n"))), R"( call_0:f({"a": "b"}).)")
      << "no flag: text";
}

TEST(OutputParser, ACallThatWasCutIsKnownToBe) {
  const std::string text = "x" + block(call(parameter("a", "b")) + call(parameter("c", "d"), "g"));
  for (size_t size = 0; size <= text.size(); ++size) {
    OutputParser parser({.is_thinking = false});
    std::vector<OutputDelta> deltas;
    parser.push(text.substr(0, size), deltas);
    parser.finish(deltas);
    const ParsedOutput output = parse_output(text.substr(0, size), {.is_thinking = false});
    EXPECT_EQ(output.calls.size() + (parser.is_inside_call() ? 1 : 0), static_cast<size_t>(parser.num_calls()));
    for (const ParsedOutput::Call& done : output.calls) EXPECT_TRUE(parse_json(done.arguments).ok()) << done.arguments;
  }
  EXPECT_EQ(parse_output(text, {.is_thinking = false}).calls.size(), 2u);
}

// What the chat encoding writes comes back, in both spellings, wherever the stream is cut.
TEST(OutputParser, DifficultArgumentsSurviveTheRoundTrip) {
  const std::string arguments =
      "{\"shipping address\": \"北京市\\n朝阳区\\n\", \" string= mode \": {\"a\": [1, {\"b\": \"</x>\"}], \"c\": "
      "null}, "
      "\"count\": 2, \"\": \"\"}";
  ChatRequest request;
  request.is_thinking = false;
  std::string escaped;
  append_json_escaped(arguments, escaped);
  request.messages = parse_chat_request(
                         "{\"messages\":[{\"role\":\"assistant\",\"content\":\"done\",\"tool_calls\":[{\"function\":"
                         "{\"name\":\"ship\",\"arguments\":\"" +
                         escaped +
                         "\"}},{\"function\":"
                         "{\"name\":\"none\",\"arguments\":\"{}\"}}]}]}")
                         .value()
                         .messages;
  std::string text = encode_chat(golden_tokenizer(), request).value().text;
  text = text.substr(kBeginOfSentence.size(), text.size() - kBeginOfSentence.size() - kEndOfSentence.size());
  const std::string expected = "C:done call_0:ship(" + arguments + "). call_1:none({}).";
  EXPECT_EQ(parse(text), expected);
  const std::string spaced = std::string(kToolMarker) + " ";
  for (size_t at = 0; (at = text.find(spaced, at)) != std::string::npos;) text.erase(at + kToolMarker.size(), 1);
  EXPECT_EQ(parse(text), expected);
}

TEST(OutputParser, AgreesWithTheStrictGrammarOnWellFormedOutput) {
  RandomText random(12);
  // Texts that cannot be taken for markup, and do not begin or end with a line feed where those are dropped.
  const auto words = [&random] {
    std::string out = "x";
    for (int left = random.below(12); left > 0; --left) {
      const char32_t c = random.code_point();
      append_utf8(c == '<' || c == 0xFF5C ? U'\n' : c, out);
    }
    return out + "y";
  };
  for (int i = 0; i < 2000; ++i) {
    const bool is_thinking = random.below(2) == 0, is_spaced = random.below(2) == 0;
    const std::string d = std::string(kToolMarker) + (is_spaced ? " " : "");
    const std::string word = is_spaced ? "calls" : "tool_calls";
    std::string text = is_thinking ? words() + "</think>" : "";
    text += words();
    if (random.below(4) != 0) {
      text += "\n\n<" + d + word + ">\n";
      for (int calls = random.below(4); calls > 0; --calls) {
        text += "<" + d + "invoke name=\"f" + std::to_string(calls) + "\">\n";
        const int num_parameters = random.below(4);
        for (int p = 0; p < num_parameters; ++p) {
          const bool is_string = random.below(2) == 0;
          text += "<" + d + "parameter name=\"k " + std::to_string(p) + "\" string=\"" +
                  (is_string ? "true" : "false") + "\">";
          text += is_string ? words() : dump_json(Json(words()));
          text += "</" + d + "parameter>\n";
        }
        text += (num_parameters == 0 ? "\n</" : "</") + d + "invoke>\n";
      }
      text += "</" + d + word + ">";
    }
    const std::optional<ParsedOutput> strict = StrictOutputParser(text, is_spaced ? " " : "", word).parse(is_thinking);
    ASSERT_TRUE(strict) << text;
    const ParsedOutput tolerant = parse_output(text, {.is_thinking = is_thinking});
    ASSERT_EQ(tolerant.reasoning, strict->reasoning) << text;
    ASSERT_EQ(tolerant.content, strict->content) << text;
    ASSERT_EQ(tolerant.calls.size(), strict->calls.size()) << text;
    for (size_t c = 0; c < strict->calls.size(); ++c) {
      ASSERT_EQ(tolerant.calls[c].id, strict->calls[c].id);
      ASSERT_EQ(tolerant.calls[c].name, strict->calls[c].name);
      ASSERT_EQ(tolerant.calls[c].arguments, strict->calls[c].arguments) << text;
    }
  }
}

TEST(OutputParser, RandomMarkupIsTheSameHoweverItIsCutAndStaysWholeCharacters) {
  RandomText random(13);
  static const std::vector<std::string> kScraps = {"<｜DSML｜",
                                                   "</｜DSML｜",
                                                   " calls>",
                                                   "calls>",
                                                   "tool_calls>",
                                                   " invoke name=\"",
                                                   "invoke>",
                                                   " parameter name=\"",
                                                   "parameter>",
                                                   "\" string=\"true\">",
                                                   "\" string=\"false\">",
                                                   "\">",
                                                   "</think>",
                                                   "<think>",
                                                   "\n",
                                                   "\n\n",
                                                   "<",
                                                   "</",
                                                   "｜",
                                                   "D",
                                                   "x",
                                                   "\"",
                                                   "\\",
                                                   "你",
                                                   "\U0001F600",
                                                   " ",
                                                   ">"};
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::string> scraps;
    std::string text;
    for (int left = random.below(30); left > 0; --left) {
      scraps.push_back(kScraps[random.below(static_cast<int>(kScraps.size()))]);
      text += scraps.back();
    }
    const bool is_thinking = random.below(2) == 0;
    const std::string whole = parse_cut_at(text, {}, is_thinking);
    std::vector<size_t> cuts;
    for (size_t at = 0; at < text.size(); ++at) {
      if (random.below(3) == 0) cuts.push_back(at);
    }
    ASSERT_EQ(parse_cut_at(text, cuts, is_thinking), whole) << text;
    OutputParser parser({.is_thinking = is_thinking});
    for (const std::string& scrap : scraps) {
      std::vector<OutputDelta> deltas;
      parser.push(scrap, deltas);
      for (const OutputDelta& delta : deltas)
        ASSERT_TRUE(is_valid_utf8(delta.text) && is_valid_utf8(delta.call_name)) << text;
    }
  }
}

}  // namespace
}  // namespace deepinfer
