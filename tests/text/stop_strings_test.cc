#include "text/stop_strings.h"

#include <gtest/gtest.h>

#include "text/random_text.h"
#include "text/utf8.h"

namespace deepinfer {
namespace {

using Strings = std::vector<std::string>;

struct Whole {
  std::string text;
  std::optional<size_t> stop;

  bool operator==(const Whole&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Whole& whole) {
  return out << '"' << whole.text << "\", stop " << (whole.stop ? std::to_string(*whole.stop) : "none");
}

Whole join(StopStrings& stops, const Strings& pieces) {
  Whole whole;
  for (const std::string& piece : pieces) {
    StopStrings::Outcome outcome = stops.push(piece);
    whole.text += outcome.text;
    if (outcome.stop) whole.stop = outcome.stop;
  }
  whole.text += stops.finish();
  return whole;
}

// The definition: of every place where a text ends with a stop string, the first.
Whole search(std::string_view text, const Strings& stops, bool include) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::optional<size_t> met;
    for (size_t i = 0; i < stops.size(); ++i) {
      if (!text.substr(0, end).ends_with(stops[i])) continue;
      if (!met || stops[i].size() > stops[*met].size()) met = i;
    }
    if (met) return {std::string(text.substr(0, include ? end : end - stops[*met].size())), met};
  }
  return {std::string(text), std::nullopt};
}

std::string random_letters(RandomText& random, int max_length) {
  static constexpr std::string_view kLetters[] = {"a", "b", "a", "€", "é", "\U0001F600"};
  std::string text;
  for (int left = 1 + random.below(max_length); left > 0; --left) text += kLetters[random.below(6)];
  return text;
}

TEST(StopStrings, AnyCutOfTheTextGivesWhatASearchOfTheWholeGives) {
  RandomText random(1);
  int num_stopped = 0;
  for (int round = 0; round < 20000; ++round) {
    Strings stops(random.below(4));
    for (std::string& stop : stops) stop = random_letters(random, 6);
    const std::string text = random_letters(random, 40);
    const bool include = random.below(2);
    Strings pieces;
    for (size_t begin = 0; begin < text.size(); begin += pieces.back().size()) {
      pieces.push_back(text.substr(begin, random.below(9)));  // characters are cut too, and pieces are empty
    }
    StopStrings matcher(stops, include);
    const Whole expected = search(text, stops, include);
    ASSERT_EQ(join(matcher, pieces), expected) << text;
    ASSERT_EQ(join(matcher, {text}), expected) << "used again: " << text;
    num_stopped += expected.stop.has_value();
  }
  EXPECT_GT(num_stopped, 5000);
  EXPECT_LT(num_stopped, 15000);
}

TEST(StopStrings, NoDeliveredTextCutsACharacter) {
  RandomText random(2);
  for (int round = 0; round < 5000; ++round) {
    const std::string text = random_letters(random, 30);
    StopStrings matcher(Strings{random_letters(random, 4)}, false);
    for (size_t begin = 0; begin < text.size();) {
      const size_t length = 1 + random.below(5);
      const auto outcome = matcher.push(std::string_view(text).substr(begin, length));
      ASSERT_TRUE(is_valid_utf8(outcome.text)) << text;
      begin += length;
    }
    ASSERT_TRUE(is_valid_utf8(matcher.finish())) << text;
  }
}

TEST(StopStrings, HoldsBackNoMoreThanCouldBecomeAStopString) {
  StopStrings matcher(Strings{"abcd", "bcx"}, false);
  EXPECT_EQ(matcher.push("za").text, "z");
  EXPECT_EQ(matcher.push("bc").text, "");
  EXPECT_EQ(matcher.push("y").text, "abcy");
  EXPECT_EQ(matcher.push("abc").text, "");
  const auto outcome = matcher.push("xyz");
  EXPECT_EQ(outcome.text, "a");
  EXPECT_EQ(outcome.stop, 1u);
  EXPECT_EQ(matcher.push("more").text, "") << "nothing comes after a match";
  EXPECT_EQ(matcher.finish(), "");
  EXPECT_EQ(matcher.push("more").text, "more") << "as new after finish";
}

TEST(StopStrings, OfMatchesThatEndTogetherTheLongestThenTheFirstCounts) {
  StopStrings longest(Strings{"b", "ab", "ab"}, false);
  const auto outcome = longest.push("zab");
  EXPECT_EQ(outcome.text, "z");
  EXPECT_EQ(outcome.stop, 1u);
  StopStrings earliest(Strings{"abc", "b"}, true);
  EXPECT_EQ(earliest.push("zabc").text, "zab") << "the match that ends first, although another began before";
}

TEST(StopStrings, IllFormedBytesAreComparedAsTheDetokenizerWritesThem) {
  StopStrings matcher(Strings{"a\xFF"}, true);
  EXPECT_EQ(matcher.push("za\uFFFDb").text, "za\uFFFD");
}

TEST(StopStrings, WithoutStopStringsEverythingIsDeliveredAtOnce) {
  StopStrings matcher(Strings{}, false);
  EXPECT_EQ(matcher.push("any text\n").text, "any text\n");
  EXPECT_EQ(matcher.finish(), "");
}

}  // namespace
}  // namespace deepinfer
