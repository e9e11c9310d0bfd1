#include "text/utf8.h"

#include <gtest/gtest.h>

#include "text/random_text.h"

namespace deepinfer {
namespace {

std::string replaced(int num) {
  std::string out;
  for (int i = 0; i < num; ++i) out += kReplacementCharacter;
  return out;
}

TEST(Utf8, EveryScalarValueSurvivesEncodingAndDecoding) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string bytes;
    append_utf8(c, bytes);
    const CodePoint decoded = decode_valid_utf8(bytes.data());
    ASSERT_EQ(decoded.value, c);
    ASSERT_EQ(static_cast<size_t>(decoded.num_bytes), bytes.size());
    const Utf8Unit unit = first_utf8_unit(bytes);
    ASSERT_EQ(unit.kind, Utf8Kind::kValid);
    ASSERT_EQ(static_cast<size_t>(unit.num_bytes), bytes.size());
  }
}

// The expected texts are what Python gives for bytes.decode(errors='replace').
TEST(Utf8, MaximalSubpartsBecomeOneReplacementCharacterEach) {
  EXPECT_EQ(replace_invalid_utf8("a\x80"
                                 "b"),
            std::string("a") + replaced(1) + "b");
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x98"), replaced(1));
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x98x"), replaced(1) + "x");
  EXPECT_EQ(replace_invalid_utf8("\xF1\x80\x80\xE1\x80\xC2"
                                 "b\x80"
                                 "c\x80\xBF"
                                 "d"),
            replaced(3) + "b" + replaced(1) + "c" + replaced(2) + "d");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), replaced(3)) << "a surrogate";
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF"), replaced(2)) << "an overlong form";
  EXPECT_EQ(replace_invalid_utf8("\xE0\x9F\xBF"), replaced(3)) << "an overlong form";
  EXPECT_EQ(replace_invalid_utf8("\xF4\x90\x80\x80"), replaced(4)) << "above U+10FFFF";
  EXPECT_EQ(replace_invalid_utf8("\xFF\xFE"), replaced(2));
}

TEST(Utf8, ReplacementOfRandomBytesIsValidAndLeavesValidTextAlone) {
  RandomText random(1);
  for (int i = 0; i < 20000; ++i) {
    const std::string bytes = random.below(2) ? random.bytes(12) : random.text(6) + random.bytes(3) + random.text(2);
    const std::string out = replace_invalid_utf8(bytes);
    ASSERT_TRUE(is_valid_utf8(out));
    ASSERT_EQ(is_valid_utf8(bytes), out == bytes);
  }
}

}  // namespace
}  // namespace deepinfer
