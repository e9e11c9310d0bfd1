#include "text/pretokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unicode/uchar.h>

#include <thread>

#include "text/random_text.h"

namespace deepinfer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<SplitPattern> deepseek_stages() {
  std::vector<SplitPattern> stages;
  for (const std::string_view text : kDeepseekPatterns) stages.push_back({true, std::string(text)});
  return stages;
}

std::vector<std::string> pieces(const Pretokenizer& pretokenizer, const std::string& text) {
  std::vector<std::string> out;
  std::vector<size_t> ends;
  size_t begin = 0;
  while (begin < text.size()) {
    pretokenizer.next_pieces(text, begin, ends);
    for (const size_t end : ends) {
      out.push_back(text.substr(begin, end - begin));
      begin = end;
    }
  }
  return out;
}

class BothPaths : public testing::Test {
 protected:
  std::vector<std::string> cut(const std::string& text) {
    std::vector<std::string> fast = pieces(fastest_, text);
    EXPECT_EQ(fast, pieces(regex_only_, text)) << text;
    return fast;
  }

  Pretokenizer fastest_ = Pretokenizer::create(deepseek_stages()).value();
  Pretokenizer regex_only_ = Pretokenizer::create(deepseek_stages(), Pretokenizer::Path::kRegexOnly).value();
};

TEST_F(BothPaths, CutNumbersInThreesFromTheLeft) {
  EXPECT_THAT(cut("1234567"), ElementsAre("123", "456", "7"));
  EXPECT_THAT(cut("x\u00B2\u00B3"), ElementsAre("x", "\u00B2\u00B3"));
}

TEST_F(BothPaths, KeepASpaceBeforeANumberOrAHanCharacterApart) {
  EXPECT_THAT(cut("a 75"), ElementsAre("a", " ", "75"));
  EXPECT_THAT(cut("a  75"), ElementsAre("a", "  ", "75"));
  EXPECT_THAT(cut("a \u4E00"), ElementsAre("a", " ", "\u4E00"));
  EXPECT_THAT(cut("a   b"), ElementsAre("a", "  ", " b"));
}

TEST_F(BothPaths, CutAtTheLastLineEndOfWhiteSpace) {
  EXPECT_THAT(cut("a \n \n  b"), ElementsAre("a", " \n \n", " ", " b"));
  EXPECT_THAT(cut("a.\n\nb"), ElementsAre("a", ".\n\n", "b"));
  EXPECT_THAT(cut("\u30FB\n"), ElementsAre("\u30FB", "\n"));
}

TEST_F(BothPaths, LeaveCharactersOfNoAlternativeAsGaps) {
  EXPECT_THAT(cut("\x01\x02\x03"), ElementsAre("\x01\x02\x03"));
  EXPECT_THAT(cut("\x01\x02"
                  "a"),
              ElementsAre("\x01",
                          "\x02"
                          "a"));
}

TEST_F(BothPaths, TakeOneAsciiPunctuationMarkWithTheLettersAfterIt) {
  EXPECT_THAT(cut("don't_x"), ElementsAre("don", "'t", "_x"));
  EXPECT_THAT(cut("a.\u00E9"), ElementsAre("a", ".", "\u00E9"));
  EXPECT_THAT(cut(".a\u00E9"), ElementsAre(".a", "\u00E9"));
}

// The oracle's tables are of Unicode 14: characters that are younger count as unassigned there, so they are left out.
bool is_known_to_both(char32_t c) {
  UVersionInfo age;
  u_charAge(static_cast<UChar32>(c), age);
  return age[0] <= 14;
}

TEST_F(BothPaths, AgreeOnEveryCharacterInContext) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if ((c >= 0xD800 && c < 0xE000) || !is_known_to_both(c)) continue;
    std::string text;
    for (const char32_t neighbour : {U'a', U' ', U'.', U'1', U'\u4E00', U'\n', U'\x01'}) {
      append_utf8(c, text);
      append_utf8(neighbour, text);
    }
    cut(text);
    ASSERT_FALSE(HasFailure()) << "U+" << std::hex << static_cast<uint32_t>(c);
  }
}

TEST_F(BothPaths, AgreeOnRandomText) {
  RandomText random(4);
  for (int i = 0; i < 60000; ++i) {
    std::string text;
    for (int left = random.below(40); left > 0; --left) {
      const char32_t c = random.code_point();
      if (is_known_to_both(c)) append_utf8(c, text);
    }
    cut(text);
    ASSERT_FALSE(HasFailure());
  }
}

TEST_F(BothPaths, AgreeOnLongRuns) {
  for (const char* unit : {" ", "\n", "a", "1", "\u4E00", "\x01", " \n", "\u3040", ".", "\u0301", "\u00A0"}) {
    std::string text;
    for (int i = 0; i < 100000; ++i) text += unit;
    cut(text);
    cut(text + "b");
    ASSERT_FALSE(HasFailure()) << unit;
  }
}

TEST(RegexSplitter, CutsByFixedTextToo) {
  const Pretokenizer pretokenizer = Pretokenizer::create({{false, "+."}}).value();
  EXPECT_THAT(pieces(pretokenizer, "a+.b+"), ElementsAre("a", "+.", "b+"));
}

TEST(RegexSplitter, ReadsWhiteSpaceAsTheUnicodePropertyAndNotAsPcreDoes) {
  const Pretokenizer pretokenizer = Pretokenizer::create({{true, "\\s+"}}).value();
  EXPECT_THAT(pieces(pretokenizer,
                     "a\u00A0\u2003\u3000\u0085"
                     "b"),
              ElementsAre("a", "\u00A0\u2003\u3000\u0085", "b"));
  EXPECT_THAT(pieces(pretokenizer,
                     "a\u180E"
                     "b"),
              ElementsAre("a\u180E"
                          "b"));
  const Pretokenizer in_class = Pretokenizer::create({{true, "[^\\s\\p{L}]+|[\\S]"}}).value();
  EXPECT_THAT(pieces(in_class, "a \u180E"), ElementsAre("a", " ", "\u180E"));
}

TEST(RegexSplitter, LaterStagesSeeOnlyTheirOwnPiece) {
  const Pretokenizer pretokenizer = Pretokenizer::create({{true, "1"}, {true, "\\s+(?!\\S)|(?<=1)a|\\s"}}).value();
  EXPECT_THAT(pieces(pretokenizer, "  1ab"), ElementsAre("  ", "1", "ab"));
}

TEST(RegexSplitter, SeveralThreadsMayShareOne) {
  const Pretokenizer pretokenizer = Pretokenizer::create(deepseek_stages(), Pretokenizer::Path::kRegexOnly).value();
  RandomText random(14);
  std::string text;
  for (int i = 0; i < 200; ++i) text += random.text(40);
  const std::vector<std::string> expected = pieces(pretokenizer, text);
  std::vector<std::vector<std::string>> found(4);
  std::vector<std::thread> threads;
  for (auto& result : found) threads.emplace_back([&] { result = pieces(pretokenizer, text); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : found) EXPECT_EQ(result, expected);
}

TEST(RegexSplitter, RefusesWhatOnigurumaReadsDifferently) {
  const auto message = [](const char* pattern) {
    const auto result = Pretokenizer::create({{true, pattern}});
    return result.ok() ? std::string("accepted") : result.status().message();
  };
  EXPECT_THAT(message("\\w+"), HasSubstr("the escape \\w is not supported"));
  EXPECT_THAT(message("\\h"), HasSubstr("the escape \\h is not supported"));
  EXPECT_THAT(message("[a[bc]]"), HasSubstr("a character class inside a class"));
  EXPECT_THAT(message("[a-z&&[^b]]"), HasSubstr("&& in a class"));
  EXPECT_THAT(message("a*"), HasSubstr("can match an empty text"));
  EXPECT_THAT(message("(a"), HasSubstr("regular expression (a"));
  EXPECT_EQ(message("[[:alpha:]]+|(?i:'s|'t)| ?\\p{Lu}"), "accepted");
}

}  // namespace
}  // namespace deepinfer
