#include "text/added_tokens.h"

#include <gtest/gtest.h>

#include "text/random_text.h"

namespace deepinfer {
namespace {

TEST(AddedTokens, TheLeftmostMatchWinsThenTheLongest) {
  const AddedTokenMatcher matcher({{"<a>", 1}, {"<a>b", 2}, {"b<a>b<", 3}, {"<a", 4}});
  const auto first = matcher.find("xb<a>bc", 0);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->id, 2);
  EXPECT_EQ(first->begin, 2u);
  EXPECT_EQ(first->end, 6u);
  EXPECT_EQ(matcher.find("xb<a>b<", 0)->id, 3);
  EXPECT_EQ(matcher.find("xb<a>b<", 2)->id, 2);
  EXPECT_EQ(matcher.find("<a", 0)->id, 4);
  EXPECT_FALSE(matcher.find("<b", 0));
  EXPECT_FALSE(matcher.find("", 0));
  EXPECT_FALSE(AddedTokenMatcher().find("<a>", 0));
}

TEST(AddedTokens, MatchesAreThoseOfTryingEveryTokenAtEveryPlace) {
  RandomText random(2);
  const auto word = [&random](int max) {
    std::string out;
    for (int left = 1 + random.below(max); left > 0; --left) out.push_back("abc\xFF"[random.below(4)]);
    return out;
  };
  for (int round = 0; round < 500; ++round) {
    std::vector<AddedToken> tokens;
    for (int i = 0; i < 12; ++i) {
      AddedToken token{word(5), i};
      bool is_new = true;
      for (const AddedToken& other : tokens) is_new &= other.text != token.text;
      if (is_new) tokens.push_back(token);
    }
    const AddedTokenMatcher matcher(tokens);
    const std::string text = word(40);
    const AddedToken* expected = nullptr;
    size_t place = 0;
    for (; place < text.size() && expected == nullptr; ++place) {
      for (const AddedToken& token : tokens) {
        if (text.compare(place, token.text.size(), token.text) != 0) continue;
        if (expected == nullptr || token.text.size() > expected->text.size()) expected = &token;
      }
    }
    const auto match = matcher.find(text, 0);
    ASSERT_EQ(match.has_value(), expected != nullptr);
    if (!match) continue;
    EXPECT_EQ(match->id, expected->id);
    EXPECT_EQ(match->begin, place - 1);
    EXPECT_EQ(match->end, match->begin + expected->text.size());
  }
}

}  // namespace
}  // namespace deepinfer
