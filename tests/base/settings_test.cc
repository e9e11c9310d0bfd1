#include "base/settings.h"

#include <cmath>
#include <cstdio>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/settings_sources.h"

namespace deepinfer {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Kitchen {
  int64_t num_ovens = 2;
  double heat = 0.5;
  bool has_light = true;
  int64_t fridge_bytes = int64_t{1} << 30;
  std::string style = "plain";
  std::string cook;
  int64_t num_robots = 0;
};

const SettingsTable& kitchen_table() {
  static const auto table = [] {
    SettingsOf<Kitchen> t;
    t.begin_group("Machines");
    t.whole_number("num_ovens", &Kitchen::num_ovens, 1, 8, "Ovens | of any kind.").alias("oven_count");
    t.number("heat", &Kitchen::heat, 0, 1, "How hot.");
    t.on_off("has_light", &Kitchen::has_light, "Whether one sees.");
    t.byte_size("fridge_bytes", &Kitchen::fridge_bytes, "Room.");
    t.begin_group("People");
    t.choice("style", &Kitchen::style, {"plain", "grand"}, "How.");
    t.text("cook", &Kitchen::cook, "a name", "Who.");
    t.whole_number("num_robots", &Kitchen::num_robots, 0, 9, "Robots.").refuse("Robots are not built.");
    t.refused("dishwasher", "0", "There is no dishwasher.");
    t.refused("radio", "", "There is no radio.");
    return t;
  }();
  return table;
}

Result<Kitchen> read(const std::vector<SettingValue>& values) {
  Kitchen kitchen;
  const SettingsTarget target{&kitchen_table(), &kitchen};
  DI_RETURN_IF_ERROR(apply_settings(values, {&target, 1}));
  return kitchen;
}

std::string message(const std::vector<SettingValue>& values) {
  const Result<Kitchen> kitchen = read(values);
  return kitchen.ok() ? "" : kitchen.status().message();
}

SettingValue keyword(std::string name, std::string text) {
  return {SettingSource::kKeyword, std::move(name), std::move(text), ""};
}

// A file that is gone with the test.
class TextFile {
 public:
  explicit TextFile(const std::string& content) : path_(testing::TempDir() + "/deepinfer_settings_test.toml") {
    std::ofstream(path_) << content;
  }
  ~TextFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(Settings, EverySourceFillsTheSameMembers) {
  const TextFile file(
      "num_ovens = 3 # some\nheat = 0.25\nhas_light = false\nfridge_bytes = \"2GiB\"\nstyle = \"grand\"\ncook = "
      "\"Zoë\"\n");
  const char* const environment[] = {"PATH=/bin",
                                     "DEEPINFER_NUM_OVENS=3",
                                     "DEEPINFER_HEAT=0.25",
                                     "DEEPINFER_HAS_LIGHT=0",
                                     "DEEPINFER_FRIDGE_BYTES=2147483648",
                                     "DEEPINFER_STYLE=grand",
                                     "DEEPINFER_COOK=Zoë",
                                     nullptr};
  const std::vector<std::string> flags = {"--num-ovens",    "3",          "--heat=0.25", "--has-light", "false",
                                          "--fridge-bytes", "2097152KiB", "--style",     "grand",       "--cook=Zoë"};
  const std::vector<SettingValue> keywords = {keyword("num_ovens", "3"), keyword("heat", "0.25"),
                                              keyword("has_light", "0"), keyword("fridge_bytes", "2048MiB"),
                                              keyword("style", "grand"), keyword("cook", "Zoë")};
  for (const auto& values : {settings_from_file(file.path()).value(), settings_from_environment(environment),
                             settings_from_flags(flags).value(), keywords}) {
    const Result<Kitchen> kitchen = read(values);
    ASSERT_TRUE(kitchen.ok()) << kitchen.status().message();
    EXPECT_EQ(kitchen->num_ovens, 3);
    EXPECT_EQ(kitchen->heat, 0.25);
    EXPECT_FALSE(kitchen->has_light);
    EXPECT_EQ(kitchen->fridge_bytes, int64_t{2} << 30);
    EXPECT_EQ(kitchen->style, "grand");
    EXPECT_EQ(kitchen->cook, "Zoë");
  }
}

TEST(Settings, ALaterSourceOverridesOnlyWhatItNames) {
  Kitchen kitchen;
  const SettingsTarget target{&kitchen_table(), &kitchen};
  ASSERT_TRUE(apply_settings(std::vector{keyword("num_ovens", "5"), keyword("heat", "1")}, {&target, 1}).ok());
  ASSERT_TRUE(apply_settings(std::vector{keyword("oven_count", "6")}, {&target, 1}).ok());
  EXPECT_EQ(kitchen.num_ovens, 6);
  EXPECT_EQ(kitchen.heat, 1);
  EXPECT_EQ(kitchen.style, "plain");
}

TEST(Settings, AnUnknownNameIsRefusedWithTheNearestInTheSpellingOfItsSource) {
  EXPECT_THAT(message({keyword("num_oven", "3")}), AllOf(HasSubstr("num_oven:"), HasSubstr("nearest is num_ovens")));
  EXPECT_THAT(message({{SettingSource::kEnvironment, "DEEPINFER_OVENCOUNT", "3", ""}}),
              AllOf(HasSubstr("DEEPINFER_OVENCOUNT:"), HasSubstr("nearest is DEEPINFER_OVEN_COUNT")));
  EXPECT_THAT(message({{SettingSource::kFlag, "--hat", "3", ""}}), HasSubstr("nearest is --heat"));
  EXPECT_THAT(message({{SettingSource::kFile, "styl", "3", "a.toml:7"}}),
              AllOf(HasSubstr("a.toml:7: styl"), HasSubstr("nearest is style")));
  // Spellings of another source, or in the wrong case, are unknown too.
  EXPECT_THAT(message({{SettingSource::kFlag, "--num_ovens", "3", ""}}), HasSubstr("nearest is --num-ovens"));
  EXPECT_THAT(message({{SettingSource::kEnvironment, "DEEPINFER_heat", "1", ""}}),
              HasSubstr("nearest is DEEPINFER_HEAT"));
  EXPECT_THAT(message({keyword("", "3")}), HasSubstr("no such setting"));
  EXPECT_THAT(message({keyword("Heat", "1")}), HasSubstr("nearest is heat"));
}

TEST(Settings, AMalformedValueIsRefusedWithWhatIsAllowed) {
  for (const char* text : {"0", "9", "-1", "3.0", "three", "", " 3", "3 ", "0x3", "99999999999999999999"}) {
    EXPECT_THAT(message({keyword("num_ovens", text)}),
                AllOf(HasSubstr(fmt::format("num_ovens '{}'", text)), HasSubstr("give a whole number from 1 to 8")));
  }
  for (const char* text : {"-0.1", "1.1", "nan", "inf", "", "1,0"}) {
    EXPECT_THAT(message({keyword("heat", text)}), HasSubstr("give a number from 0 to 1"));
  }
  for (const char* text : {"2", "yes", "", "True"})
    EXPECT_THAT(message({keyword("has_light", text)}), HasSubstr("0 or 1"));
  for (const char* text : {"", "8G", "GiB", "-1", "1.5GiB", "8 GiB", "9999999999TiB"}) {
    EXPECT_THAT(message({keyword("fridge_bytes", text)}), HasSubstr("512MiB"));
  }
  EXPECT_THAT(message({keyword("style", "Grand")}), HasSubstr("one of plain, grand"));
  EXPECT_THAT(message({{SettingSource::kFile, "heat", "7", "a.toml:2"}}), HasSubstr("a.toml:2: heat '7'"));
}

TEST(Settings, WhatIsNotBuiltIsRefusedByItsSentenceUnlessItIsOff) {
  EXPECT_THAT(message({keyword("num_robots", "1")}),
              AllOf(HasSubstr("num_robots 1"), HasSubstr("Robots are not built.")));
  EXPECT_EQ(message({keyword("num_robots", "0")}), "");
  EXPECT_THAT(message({keyword("num_robots", "x")}), HasSubstr("whole number"));
  EXPECT_THAT(message({keyword("dishwasher", "1")}), HasSubstr("There is no dishwasher."));
  EXPECT_EQ(message({keyword("dishwasher", "0")}), "");
  EXPECT_THAT(message({keyword("radio", "")}), HasSubstr("There is no radio."));
}

TEST(Settings, OneSourceCannotGiveTheSameSettingTwice) {
  EXPECT_THAT(message({keyword("num_ovens", "3"), keyword("oven_count", "3")}),
              AllOf(HasSubstr("num_ovens and oven_count"), HasSubstr("leave one out")));
  EXPECT_THAT(message({keyword("heat", "1"), keyword("heat", "1")}), HasSubstr("heat and heat"));
}

TEST(Settings, SeveralTablesShareOneSetOfNames) {
  struct Garden {
    int64_t num_trees = 1;
  };
  SettingsOf<Garden> garden_table;
  garden_table.whole_number("num_trees", &Garden::num_trees, 0, 9, "Trees.");
  Kitchen kitchen;
  Garden garden;
  const SettingsTarget targets[] = {{&kitchen_table(), &kitchen}, {&garden_table, &garden}};
  ASSERT_TRUE(apply_settings(std::vector{keyword("num_trees", "7"), keyword("num_ovens", "4")}, targets).ok());
  EXPECT_EQ(kitchen.num_ovens, 4);
  EXPECT_EQ(garden.num_trees, 7);
  const Status status = apply_settings(std::vector{keyword("num_tree", "7")}, targets);
  EXPECT_THAT(status.message(), HasSubstr("num_trees"));
}

TEST(Settings, ByteSizesAreShownAsTheyAreRead) {
  for (const char* text : {"0", "1", "1023", "1KiB", "1025", "512MiB", "8GiB", "1025GiB", "2TiB"}) {
    EXPECT_EQ(show_byte_size(read_byte_size(text).value()), text);
  }
}

TEST(Settings, DocumentationHoldsEveryRowOnce) {
  const std::string text = kitchen_table().to_markdown();
  EXPECT_THAT(text, HasSubstr("## Machines"));
  EXPECT_THAT(text,
              HasSubstr("| `num_ovens`, `oven_count` | `2` | a whole number from 1 to 8 | Ovens \\| of any kind. |"));
  EXPECT_THAT(text, HasSubstr("| `fridge_bytes` | `1GiB` |"));
  EXPECT_THAT(text, HasSubstr("| `num_robots` | `0` | Robots are not built. |"));
  EXPECT_THAT(text, HasSubstr("| `radio` | nothing | There is no radio. |"));
  for (const SettingRow& row : kitchen_table().rows()) {
    const std::string cell = "| `" + row.name + "`";
    EXPECT_EQ(text.find(cell), text.rfind(cell)) << row.name;
  }
}

TEST(SettingsFile, ListsBecomeOneTextAndErrorsNameTheLine) {
  {
    const TextFile file("a = [1, 0.5, \"x\"]\nb = true\n");
    const std::vector<SettingValue> values = settings_from_file(file.path()).value();
    ASSERT_EQ(values.size(), 2u);
    EXPECT_EQ(values[0].text, "1,0.5,x");
    EXPECT_EQ(values[1].text, "1");
    EXPECT_EQ(values[1].where, file.path() + ":2");
  }
  const auto error = [](const std::string& content) {
    const TextFile file(content);
    const auto values = settings_from_file(file.path());
    return values.ok() ? "" : values.status().message();
  };
  EXPECT_THAT(error("a = 1\nb = = 2\n"), HasSubstr(".toml:2: "));
  EXPECT_THAT(error("a = 1\na = 2\n"), HasSubstr(".toml:2: "));
  EXPECT_THAT(error("a = 1\n\n[b]\nc = 1\n"), AllOf(HasSubstr(".toml:3: b"), HasSubstr("give a text")));
  EXPECT_THAT(error("a = [[1]]\n"), HasSubstr("inside an array"));
  EXPECT_THAT(error("a = 2020-01-01\n"), HasSubstr("give a text"));
  EXPECT_THAT(settings_from_file("/no/such/file").status().message(), HasSubstr("/no/such/file"));
}

TEST(SettingsFlags, EachHasAValue) {
  const auto error = [](const std::vector<std::string>& arguments) {
    const auto values = settings_from_flags(arguments);
    return values.ok() ? "" : values.status().message();
  };
  EXPECT_EQ(settings_from_flags(std::vector<std::string>{"--a", "-1", "--b="}).value()[0].text, "-1");
  EXPECT_THAT(error({"--a"}), HasSubstr("--a needs a value"));
  EXPECT_THAT(error({"--a", "--b", "1"}), HasSubstr("--a needs a value"));
  EXPECT_THAT(error({"a"}), HasSubstr("--name value"));
  EXPECT_THAT(error({"--"}), HasSubstr("--name value"));
}

}  // namespace
}  // namespace deepinfer
