#include "checkpoint/json_fields.h"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deepinfer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

JsonFields parse(std::string_view text) { return JsonFields::parse("f.json", text).value(); }

TEST(JsonFields, ReadsEachTypeByKeyOrAlias) {
  const auto fields =
      parse(R"({"int":3,"real":2,"text":"x","flag":true,"list":[1,2],"one":7,"child":{"deep":-1},"nothing":null})");
  int64_t integer = 0, deep = 0, untouched = 42;
  double real = 0;
  std::string text;
  bool flag = false;
  std::vector<int64_t> list, one, two;
  fields.read({"other_name", "int"}, &integer, {0, 10});
  fields.read({"real"}, &real, RealRange{0, 10});
  fields.read({"text"}, &text);
  fields.read_if_present({"flag"}, &flag);
  fields.read({"list"}, &list, {0, 10}, 2);
  fields.read_one_or_more_if_present({"one"}, &one, {0, 10}, 4);
  fields.read_one_or_more_if_present({"list"}, &two, {0, 10}, 4);
  fields.read_if_present({"nothing"}, &untouched, {0, 1});
  fields.child("child")->read({"deep"}, &deep, {-5, 5});
  const Status status = fields.take_status();
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(integer, 3);
  EXPECT_EQ(real, 2.0);
  EXPECT_EQ(text, "x");
  EXPECT_TRUE(flag);
  EXPECT_THAT(list, ElementsAre(1, 2));
  EXPECT_THAT(one, ElementsAre(7));
  EXPECT_THAT(two, ElementsAre(1, 2));
  EXPECT_EQ(untouched, 42);
  EXPECT_EQ(deep, -1);
  EXPECT_FALSE(fields.has({"nothing"}));
  EXPECT_FALSE(fields.child("absent").has_value());
}

TEST(JsonFields, KeepsTheFirstProblemAndNamesKeyAndValue) {
  const auto fields = parse(R"({"outer":{"size":-3},"later":"x"})");
  int64_t size = 8, later = 8;
  fields.child("outer")->read({"size"}, &size, {0, 9});
  fields.read({"later"}, &later, {0, 9});
  EXPECT_EQ(fields.take_status().message(), "f.json: outer.size is -3, expected an integer from 0 to 9");
  EXPECT_EQ(size, 8);
}

TEST(JsonFields, RefusesEveryWrongType) {
  const std::string_view document =
      R"({"text":"x","real":1.5,"big":18446744073709551615,"list":[1,"a"],"long":[1,2,3],"object":{},"flag":1})";
  const std::pair<std::function<void(const JsonFields&)>, const char*> cases[] = {
      {[](const auto& f) {
         int64_t v;
         f.read({"text"}, &v, {0, 9});
       },
       "text is \"x\", expected an integer"},
      {[](const auto& f) {
         int64_t v;
         f.read({"real"}, &v, {0, 9});
       },
       "real is 1.5, expected an integer"},
      {[](const auto& f) {
         int64_t v;
         f.read({"big"}, &v, {0, INT64_MAX});
       },
       "big is 18446744073709551615"},
      {[](const auto& f) {
         double v;
         f.read({"object"}, &v, {0, 9});
       },
       "object is an object, expected a number"},
      {[](const auto& f) {
         double v;
         f.read({"real"}, &v, {2, 9});
       },
       "real is 1.5, expected a number from 2 to 9"},
      {[](const auto& f) {
         std::string v;
         f.read({"real"}, &v);
       },
       "real is 1.5, expected a string"},
      {[](const auto& f) {
         bool v;
         f.read_if_present({"flag"}, &v);
       },
       "flag is 1, expected true or false"},
      {[](const auto& f) {
         std::vector<int64_t> v;
         f.read({"text"}, &v, {0, 9}, 9);
       },
       "expected an array of integers"},
      {[](const auto& f) {
         std::vector<int64_t> v;
         f.read({"list"}, &v, {0, 9}, 9);
       },
       "list has \"a\" as entry 1"},
      {[](const auto& f) {
         std::vector<int64_t> v;
         f.read({"long"}, &v, {0, 9}, 2);
       },
       "long has more than 2 entries"},
      {[](const auto& f) {
         std::vector<int64_t> v;
         f.read_one_or_more_if_present({"text"}, &v, {0, 9}, 2);
       },
       "or an array of them"},
      {[](const auto& f) {
         int64_t v;
         f.read({"gone", "alias"}, &v, {0, 9});
       },
       "f.json: gone is missing"},
      {[](const auto& f) { (void)f.child("text"); }, "text is \"x\", expected an object"},
  };
  for (const auto& [read, fragment] : cases) {
    const auto fields = parse(document);
    read(fields);
    const Status status = fields.take_status();
    ASSERT_FALSE(status.ok()) << fragment;
    EXPECT_THAT(status.message(), HasSubstr(fragment));
  }
}

TEST(JsonFields, RefusesAKeyThatAppearsTwiceAtAnyLevel) {
  EXPECT_THAT(JsonFields::parse("f.json", R"({"a":1,"a":2})").status().message(), HasSubstr("key a appears twice"));
  const auto fields = parse(R"({"o":{"a":1,"a":2}})");
  (void)fields.child("o");
  EXPECT_THAT(fields.take_status().message(), HasSubstr("key o.a appears twice"));
}

}  // namespace
}  // namespace deepinfer
