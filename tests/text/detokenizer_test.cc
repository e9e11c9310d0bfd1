#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include "text/golden_tokenizer.h"
#include "text/random_text.h"
#include "text/utf8.h"

namespace deepinfer {
namespace {

std::string decode(const std::vector<int32_t>& ids, Detokenizer::Controls controls = Detokenizer::Controls::kShow) {
  Detokenizer detokenizer(golden_tokenizer(), controls);
  std::string text;
  for (const int32_t id : ids) text += detokenizer.push(id);
  return text + detokenizer.finish();
}

TEST(Detokenizer, GivesBackEveryValidText) {
  RandomText random(5);
  for (int i = 0; i < 3000; ++i) {
    const std::string text = random.text(30);
    ASSERT_EQ(decode(golden_tokenizer().encode_ordinary(text)), text);
  }
}

TEST(Detokenizer, AnyTokensDecodeAsTheirBytesTogether) {
  RandomText random(6);
  for (int i = 0; i < 3000; ++i) {
    std::vector<int32_t> ids;
    std::string bytes;
    for (int left = random.below(20); left > 0; --left) {
      // Single bytes are the ids 3..258.
      ids.push_back(random.below(2) ? 3 + random.below(256) : random.below(golden_tokenizer().vocab_size()));
      bytes += golden_tokenizer().token_bytes(ids.back());
    }
    ASSERT_EQ(decode(ids), replace_invalid_utf8(bytes));
  }
}

TEST(Detokenizer, KeepsAnIncompleteCharacterAndEmitsItOnce) {
  const Tokenizer& tokenizer = golden_tokenizer();
  Detokenizer detokenizer(tokenizer);
  EXPECT_EQ(detokenizer.push(*tokenizer.find_token("\xF0")), "");
  EXPECT_EQ(detokenizer.push(*tokenizer.find_token("\x9F")), "");
  EXPECT_EQ(detokenizer.push(*tokenizer.find_token("\x98")), "");
  EXPECT_EQ(detokenizer.push(*tokenizer.find_token("\x80")), "\U0001F600");
  EXPECT_EQ(detokenizer.push(*tokenizer.find_token("\xE2")), "");
  EXPECT_EQ(detokenizer.push(*tokenizer.find_token("a")), "\uFFFDa");
  EXPECT_EQ(detokenizer.push(*tokenizer.find_token("\xE2")), "");
  EXPECT_EQ(detokenizer.finish(), "\uFFFD");
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(Detokenizer, ShowsOrHidesControlTokens) {
  const std::vector<int32_t> ids = golden_tokenizer().encode("<think>a</think>b<｜end▁of▁sentence｜>");
  EXPECT_EQ(decode(ids), "<think>a</think>b<｜end▁of▁sentence｜>");
  EXPECT_EQ(decode(ids, Detokenizer::Controls::kHide), "ab");
}

}  // namespace
}  // namespace deepinfer
