#include "text/bad_words.h"

#include <gtest/gtest.h>

#include "text/golden_tokenizer.h"
#include "text/small_tokenizer.h"

namespace deepinfer {
namespace {

using Words = std::vector<std::string>;
using Sequences = std::vector<std::vector<int32_t>>;

TEST(BadWords, GiveTheTokensOfTheWordAndOfTheWordAfterASpace) {
  const Tokenizer& tokenizer = golden_tokenizer();
  const Words words = {"hello", "a longer phrase", "日本"};
  Sequences expected;
  for (const std::string& word : words) {
    expected.push_back(tokenizer.encode_ordinary(word));
    expected.push_back(tokenizer.encode_ordinary(" " + word));
  }
  EXPECT_EQ(bad_word_tokens(tokenizer, words), expected);
}

TEST(BadWords, LoseLeadingSpacesAndDuplicates) {
  const Tokenizer& tokenizer = golden_tokenizer();
  const Sequences once = bad_word_tokens(tokenizer, Words{"hello"});
  EXPECT_EQ(once.size(), 2u);
  EXPECT_EQ(bad_word_tokens(tokenizer, Words{"hello", " hello", "  hello", "hello"}), once);
}

TEST(BadWords, OfSpacesAloneAreTakenAsTheyAre) {
  const Tokenizer tokenizer = small_tokenizer({});
  EXPECT_EQ(bad_word_tokens(tokenizer, Words{"  "}), (Sequences{{32, 32}, {32, 32, 32}}));
}

TEST(BadWords, BanAControlTokenAndItsLetters) {
  const Tokenizer tokenizer = small_tokenizer({"<x>"});
  EXPECT_EQ(bad_word_tokens(tokenizer, Words{"<x>"}),
            (Sequences{{'<', 'x', '>'}, {256}, {' ', '<', 'x', '>'}, {' ', 256}}));
}

TEST(BadWords, OfNoWordsAreNone) { EXPECT_TRUE(bad_word_tokens(golden_tokenizer(), {}).empty()); }

}  // namespace
}  // namespace deepinfer
