#include "text/byte_alphabet.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(ByteAlphabet, EveryByteHasItsOwnSpellingAndComesBack) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  std::string back;
  ASSERT_TRUE(append_spelled_bytes(spell_bytes(all), back));
  EXPECT_EQ(back, all);
}

TEST(ByteAlphabet, ControlBytesAndSpaceAreSpelledFromU0100On) {
  EXPECT_EQ(spell_bytes(std::string_view("\0", 1)), "\u0100");
  EXPECT_EQ(spell_bytes(" "), "\u0120");
  EXPECT_EQ(spell_bytes("\n"), "\u010A");
  EXPECT_EQ(spell_bytes("\x7F"), "\u0121");
  EXPECT_EQ(spell_bytes("\xAD"), "\u0143");
  EXPECT_EQ(spell_bytes("!~"), "!~");
  EXPECT_EQ(spell_bytes("\u00e9"), "\u00c3\u00a9");
}

TEST(ByteAlphabet, CharactersOutsideAreRefusedAndLeaveTheOutputUnchanged) {
  std::string out = "x";
  for (const char* spelling : {"a b", "a\u0144", "a\uFF5C", "a\n", "\u00AD"}) {
    EXPECT_FALSE(append_spelled_bytes(spelling, out)) << spelling;
    EXPECT_EQ(out, "x");
  }
}

}  // namespace
}  // namespace deepinfer
