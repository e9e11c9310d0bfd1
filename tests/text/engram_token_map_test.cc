#include "text/engram_token_map.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "text/golden_tokenizer.h"

namespace deepinfer {
namespace {

const EngramTokenMap& golden_map() {
  static const EngramTokenMap map = build_engram_token_map(golden_tokenizer()).value();
  return map;
}

std::vector<uint32_t> read_golden_map() {
  std::ifstream file(DEEPINFER_TESTS_DIR "/golden/tokenizer/engram_token_map.u32le", std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  const std::string bytes = content.str();
  std::vector<uint32_t> ids(bytes.size() / 4);
  std::memcpy(ids.data(), bytes.data(), 4 * ids.size());
  return ids;
}

// The golden file has SHA-256 c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481.
TEST(EngramTokenMap, EqualsTheGoldenMap) {
  const std::vector<uint32_t> golden = read_golden_map();
  ASSERT_EQ(golden.size(), 129280u);
  const EngramTokenMap& map = golden_map();
  EXPECT_EQ(map.num_compressed_ids, 99092u);
  EXPECT_EQ(map.compressed_ids, golden);
}

TEST(EngramTokenMap, SpellingsOfOneWordShareAnId) {
  const std::vector<uint32_t>& ids = golden_map().compressed_ids;
  for (const int id : {270, 1805, 671, 6367}) EXPECT_EQ(ids[id], 237u);
  for (const int id : {223, 201, 271}) EXPECT_EQ(ids[id], 174u);
  for (const int id : {619, 15938}) EXPECT_EQ(ids[id], 39u);
  for (const uint32_t id : {0u, 1u, 2u, 3u}) EXPECT_EQ(ids[id], id);
}

TEST(EngramTokenMap, EveryAddedTokenKeepsAnIdOfItsOwn) {
  const std::vector<uint32_t>& ids = golden_map().compressed_ids;
  for (uint32_t id = 128000; id < 129280; ++id) ASSERT_EQ(ids[id], 97812 + (id - 128000));
}

TEST(EngramNormalization, FollowsEachStep) {
  const auto normalized = [](std::string_view text) { return normalize_for_engram(text).value(); };
  EXPECT_EQ(normalized("\uFB01"), "fi") << "NFKC";
  EXPECT_EQ(normalized("\u00C9\u0301\u0488"), "e") << "marks of every kind go";
  EXPECT_EQ(normalized("\u0130\u03A3"), "i\u03C3") << "lower case without context";
  EXPECT_EQ(normalized(" \t\u00E9\r\n\u00E9 "), "e e") << "runs of spaces";
  EXPECT_EQ(normalized("\n\n"), " ") << "only spaces";
  EXPECT_EQ(normalized("\u2003\u00A0"), " ") << "NFKC turns these into spaces";
  EXPECT_EQ(normalized("\u2028x\u0085"), "x") << "white space at the ends";
  EXPECT_EQ(normalized("\x1C"
                       "A\x1F"),
            "\x1C"
            "a\x1F")
      << "separators that are not white space stay";
  EXPECT_EQ(normalized("\v\f"), "");
  EXPECT_EQ(normalized(" \v "), "") << "not one single space, so no guard";
}

// ASCII takes a path of its own; a mark that is removed again sends the same text down the general one.
TEST(EngramNormalization, TheAsciiPathEqualsTheGeneralOne) {
  for (int a = 0; a < 128; ++a) {
    for (int b = 0; b < 128; ++b) {
      for (const char* middle : {"", "A", " ", " \n"}) {
        const std::string text = std::string(1, static_cast<char>(a)) + middle + static_cast<char>(b);
        // U+0489 combines with nothing, so NFKC leaves the other characters alone.
        ASSERT_EQ(normalize_for_engram(text).value(), normalize_for_engram(text + "\u0489").value()) << a << " " << b;
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer
