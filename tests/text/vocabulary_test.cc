#include "text/vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deepinfer {
namespace {

using testing::HasSubstr;

TEST(Vocabulary, FindsRegularAndControlTokensOfTheSameSpellingApart) {
  const auto vocabulary =
      Vocabulary::create({{1, TokenKind::kControl, "ab"}, {0, TokenKind::kBytes, "ab"}, {2, TokenKind::kLiteral, "c"}});
  ASSERT_TRUE(vocabulary.ok());
  EXPECT_EQ(vocabulary->size(), 3);
  EXPECT_EQ(vocabulary->find_regular("ab"), 0);
  EXPECT_EQ(vocabulary->find_control("ab"), 1);
  EXPECT_EQ(vocabulary->find_regular("c"), std::nullopt);
  EXPECT_EQ(vocabulary->bytes(2), "c");
}

TEST(Vocabulary, ViewsStayValidWhenTheVocabularyIsMoved) {
  auto vocabulary = Vocabulary::create({{0, TokenKind::kBytes, "ab"}});
  const std::string_view before = vocabulary->bytes(0);
  const Vocabulary moved = std::move(vocabulary).value();
  EXPECT_EQ(moved.bytes(0).data(), before.data());
  EXPECT_EQ(moved.find_regular("ab"), 0);
}

TEST(Vocabulary, HolesDoubleIdsAndDoubleSpellingsAreRefused) {
  EXPECT_THAT(Vocabulary::create({{0, TokenKind::kBytes, "a"}, {2, TokenKind::kBytes, "b"}}).status().message(),
              HasSubstr("token id 1 belongs to no token"));
  EXPECT_THAT(Vocabulary::create({{0, TokenKind::kBytes, "a"}, {0, TokenKind::kBytes, "b"}}).status().message(),
              HasSubstr("token id 0 belongs to two tokens"));
  EXPECT_THAT(Vocabulary::create({{0, TokenKind::kBytes, "a"}, {1, TokenKind::kBytes, "a"}}).status().message(),
              HasSubstr("tokens 0 and 1 have the same spelling a"));
}

}  // namespace
}  // namespace deepinfer
