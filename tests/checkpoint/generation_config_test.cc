#include "checkpoint/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/temp_folder.h"

namespace deepinfer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(GenerationConfig, ReadsEveryField) {
  const auto config = GenerationConfig::from_json(
      "g.json",
      R"({"temperature":1.0,"top_p":0.95,"top_k":40,"do_sample":true,"eos_token_id":1,"_from_model_config":true})");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->temperature, 1.0);
  EXPECT_EQ(config->top_p, 0.95);
  EXPECT_EQ(config->top_k, 40);
  EXPECT_EQ(config->do_sample, true);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(1));
}

TEST(GenerationConfig, FieldsMayBeAbsentOrNullAndEosMayBeAList) {
  const auto config = GenerationConfig::from_json("g.json", R"({"top_k":null,"eos_token_id":[1,2]})");
  ASSERT_TRUE(config.ok());
  EXPECT_FALSE(config->temperature || config->top_p || config->top_k || config->do_sample);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(1, 2));
}

TEST(GenerationConfig, AFolderWithoutTheFileGivesNoSuggestions) {
  TempFolder folder;
  const auto config = GenerationConfig::from_folder(folder.path());
  ASSERT_TRUE(config.ok());
  EXPECT_FALSE(config->temperature.has_value());
  folder.write("generation_config.json", R"({"temperature":0.5})");
  EXPECT_EQ(GenerationConfig::from_folder(folder.path()).value().temperature, 0.5);
}

TEST(GenerationConfig, NamesTheValueThatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {{R"({"temperature":-1})", "temperature is -1"},
                                                       {R"({"top_p":2})", "top_p is 2, expected a number from 0 to 1"},
                                                       {R"({"top_k":1.5})", "top_k is 1.5"},
                                                       {R"({"do_sample":"yes"})", "do_sample is \"yes\""},
                                                       {R"({"eos_token_id":-4})", "eos_token_id is -4"},
                                                       {R"([])", "not a JSON object"}};
  for (const auto& [text, fragment] : cases) {
    const auto config = GenerationConfig::from_json("g.json", text);
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_THAT(config.status().message(), testing::AllOf(HasSubstr("g.json"), HasSubstr(fragment)));
  }
}

}  // namespace
}  // namespace deepinfer
