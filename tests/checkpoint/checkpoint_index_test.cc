#include "checkpoint/checkpoint_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deepinfer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CheckpointIndex, ListsShardsAndTensorsInOrder) {
  const auto index = parse_checkpoint_index(
      "i.json",
      R"({"metadata":{"total_size":7},"weight_map":{"b":"2.safetensors","a":"1.safetensors","c":"1.safetensors"}})");
  ASSERT_TRUE(index.ok()) << index.status().message();
  EXPECT_THAT(index->shards, ElementsAre("1.safetensors", "2.safetensors"));
  ASSERT_EQ(index->entries.size(), 3u);
  EXPECT_EQ(index->entries[0].tensor, "a");
  EXPECT_EQ(index->entries[0].shard, 0);
  EXPECT_EQ(index->entries[1].tensor, "b");
  EXPECT_EQ(index->entries[1].shard, 1);
}

TEST(CheckpointIndex, SaysWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "not valid JSON"},
      {"{\"weight_map\":{\"a\":\"\xff\"}}", "not valid JSON"},
      {"[]", "no object \"weight_map\""},
      {"{}", "no object \"weight_map\""},
      {R"({"weight_map":[]})", "no object \"weight_map\""},
      {R"({"weight_map":{}})", "names no tensor"},
      {R"({"weight_map":{"a":1}})", "shard of tensor \"a\" is not a string"},
      {R"({"weight_map":{"a":"../x.safetensors"}})", "\"../x.safetensors\", which is not the name of a file"},
      {R"({"weight_map":{"a":"/etc/passwd"}})", "\"/etc/passwd\", which is not the name of a file"},
      {R"({"weight_map":{"a":".."}})", "not the name of a file"},
      {R"({"weight_map":{"a":""}})", "not the name of a file"},
      {R"({"weight_map":{"a":"x\u0000y"}})", "not the name of a file"},
      {R"({"weight_map":{"a":"x","a":"y"}})", "tensor \"a\" appears twice"},
  };
  for (const auto& [text, fragment] : cases) {
    SCOPED_TRACE(text);
    const auto index = parse_checkpoint_index("i.json", text);
    ASSERT_FALSE(index.ok());
    EXPECT_THAT(index.status().message(), testing::AllOf(HasSubstr("i.json"), HasSubstr(fragment)));
  }
}

}  // namespace
}  // namespace deepinfer
