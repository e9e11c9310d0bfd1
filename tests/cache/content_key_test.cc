#include "cache/content_key.h"

#include <numeric>
#include <set>

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

using Tokens = std::vector<int32_t>;

CacheLayout layout() {
  return {{{.name = "all", .tokens_per_block = 4, .block_bytes = 1},
           {.name = "window", .tokens_per_block = 2, .block_bytes = 1, .retention = 6}}};
}

Tokens text(int64_t length) {
  Tokens tokens(length);
  std::iota(tokens.begin(), tokens.end(), 7);
  return tokens;
}

UnitKeys keys(const Tokens& tokens, uint64_t salt = 0, const char* model = "m") {
  return unit_keys(layout(), cache_fingerprint(layout(), model), salt, tokens);
}

TEST(ContentKey, UnitsOfTheSameTokensShareTheKeysOfFullBlocks) {
  const UnitKeys a = keys(text(8)), b = keys(text(11));
  ASSERT_EQ(a.groups[0].blocks.size(), 2u);
  ASSERT_EQ(b.groups[0].blocks.size(), 3u);
  EXPECT_EQ(a.groups[0].blocks[0], b.groups[0].blocks[0]);
  EXPECT_EQ(a.groups[0].blocks[1], b.groups[0].blocks[1]);
}

TEST(ContentKey, ABlockThatIsPartlyFilledIsNotTheFullOne) {
  EXPECT_NE(keys(text(7)).groups[0].blocks[1], keys(text(8)).groups[0].blocks[1]);
  EXPECT_NE(keys(text(6)).groups[0].blocks[1], keys(text(7)).groups[0].blocks[1]);
}

TEST(ContentKey, AUnitHasTheBlocksThatItsGroupsRetain) {
  const UnitKeys unit = keys(text(11));  // rows [5, 11) of the window
  EXPECT_EQ(unit.groups[1].first, 2);
  EXPECT_EQ(unit.groups[1].blocks.size(), 4u);
}

TEST(ContentKey, ABlockDependsOnEveryTokenBeforeItsEnd) {
  const UnitKeys base = keys(text(12));
  for (int changed = 0; changed < 12; ++changed) {
    Tokens tokens = text(12);
    ++tokens[changed];
    const UnitKeys other = keys(tokens);
    EXPECT_NE(other.unit, base.unit);
    for (int block = 0; block < 3; ++block)
      EXPECT_EQ(other.groups[0].blocks[block] == base.groups[0].blocks[block], changed >= (block + 1) * 4);
  }
}

TEST(ContentKey, SaltsModelsAndGroupsHaveKeysOfTheirOwn) {
  std::set<std::string> all;
  for (const UnitKeys& unit : {keys(text(4)), keys(text(4), 1), keys(text(4), 0, "n")}) {
    all.insert(unit.unit.hex());
    all.insert(unit.groups[0].blocks[0].hex());
    all.insert(unit.groups[1].blocks[1].hex());  // ends where the other one does
  }
  EXPECT_EQ(all.size(), 9u);
}

TEST(ContentKey, TheFingerprintTellsLayoutsApart) {
  CacheLayout other = layout();
  other.groups[1].retention = 8;
  EXPECT_NE(cache_fingerprint(layout(), "m"), cache_fingerprint(other, "m"));
  other = layout();
  other.groups[0].block_bytes = 2;
  EXPECT_NE(cache_fingerprint(layout(), "m"), cache_fingerprint(other, "m"));
}

// Files outlive programs: keys must not change with the compiler, the processor or a new version of this code.
TEST(ContentKey, KeysAreTheSameForEver) {
  EXPECT_EQ(keys(text(11)).unit.hex(), "74b4b204a468db9060c840a0abad3e05");
  EXPECT_EQ(keys(text(11)).groups[1].blocks[0].hex(), "b56da9ed4a06a10458e85498a2c57f09");
}

}  // namespace
}  // namespace deepinfer
