#include "checkpoint/token_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/temp_folder.h"

namespace deepinfer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TokenMap, GivesACompressedIdForEveryToken) {
  const auto map = parse_token_map("t.json", "[0, 1, 1, 2]", 4, 3);
  ASSERT_TRUE(map.ok()) << map.status().message();
  EXPECT_THAT(*map, ElementsAre(0, 1, 1, 2));
}

TEST(TokenMap, ReadsTheGoldenModels) {
  const auto map = read_token_map(std::string(DEEPINFER_TESTS_DIR) + "/golden/model/tiny_full", 256, 64);
  ASSERT_TRUE(map.ok()) << map.status().message();
  for (int id = 0; id < 256; ++id) EXPECT_EQ((*map)[id], id % 64);
}

TEST(TokenMap, SaysWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"[0,1,1", "not valid JSON"},
      {"{}", "not an array"},
      {"[0,1,1]", "3 entries, expected one for each of the 4 tokens"},
      {"[0,1,1,2,2]", "5 entries"},
      {"[0,1,1,3]", "entry 3 is 3, expected an integer from 0 to 2"},
      {"[0,-1,1,2]", "entry 1 is -1"},
      {"[0,1.5,1,2]", "entry 1 is 1.5"},
      {"[0,\"1\",1,2]", "entry 1 is \"1\""},
      {"[0,1,1,1]", "largest compressed id is 1, expected 2"},
  };
  for (const auto& [text, fragment] : cases) {
    const auto map = parse_token_map("t.json", text, 4, 3);
    ASSERT_FALSE(map.ok()) << text;
    EXPECT_THAT(map.status().message(),
                testing::AllOf(HasSubstr("t.json"), HasSubstr(fragment), HasSubstr("tokenizer")));
  }
}

TEST(TokenMap, AMissingFileIsNamedWithItsPurpose) {
  TempFolder folder;
  const auto map = read_token_map(folder.path(), 4, 3);
  ASSERT_FALSE(map.ok());
  EXPECT_EQ(map.status().code(), ErrorCode::kNotFound);
  EXPECT_THAT(map.status().message(), testing::AllOf(HasSubstr("token_map.json"), HasSubstr("Engram")));
}

}  // namespace
}  // namespace deepinfer
