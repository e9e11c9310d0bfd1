#include "text/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

#include "text/random_text.h"

namespace deepinfer {
namespace {

using testing::HasSubstr;

std::string round_trip(std::string_view text) {
  const Result<Json> value = parse_json(text);
  return value.ok() ? dump_json(*value) : value.status().message();
}

// Expected texts are those of json.dumps(json.loads(text), ensure_ascii=False).
TEST(JsonText, WritesNumbersAsPythonDoes) {
  const std::pair<const char*, const char*> numbers[] = {
      {"0", "0"},
      {"-0", "0"},
      {"-0.0", "-0.0"},
      {"1.0", "1.0"},
      {"1E5", "100000.0"},
      {"1e15", "1000000000000000.0"},
      {"123456789012345680.0", "1.2345678901234568e+17"},
      {"1e16", "1e+16"},
      {"0.0001", "0.0001"},
      {"1e-5", "1e-05"},
      {"0.1", "0.1"},
      {"3.14159", "3.14159"},
      {"1.7976931348623157e308", "1.7976931348623157e+308"},
      {"5e-324", "5e-324"},
      {"-2.5e-7", "-2.5e-07"},
      {"12.50", "12.5"},
      {"9007199254740993", "9007199254740993"},
      {"1e22", "1e+22"},
      {"18446744073709551615", "18446744073709551615"},
      {"-9223372036854775808", "-9223372036854775808"},
      {"18446744073709551616", "18446744073709551616"},
      {"-123456789012345678901234567890", "-123456789012345678901234567890"},
      {"1234567.125", "1234567.125"},
      {"0.00012345", "0.00012345"},
      {"100", "100"}};
  for (const auto& [text, expected] : numbers) EXPECT_EQ(round_trip(text), expected) << text;
}

TEST(JsonText, EveryPrintedFloatReadsBackAsTheSameNumber) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 100000; ++i) {
    const double value = std::bit_cast<double>(random());
    if (!std::isfinite(value)) continue;
    const std::string text = dump_json(Json(value));
    ASSERT_EQ(std::bit_cast<uint64_t>(parse_json(text).value().get<double>()), std::bit_cast<uint64_t>(value)) << text;
  }
}

TEST(JsonText, WritesStringsAndContainersAsPythonDoes) {
  EXPECT_EQ(round_trip(R"({"b":[1,{"a":null}],"a":[true,false],"e":{},"f":[]})"),
            R"({"b": [1, {"a": null}], "a": [true, false], "e": {}, "f": []})");
  EXPECT_EQ(round_trip(R"("\u00e9\ud83d\ude00\/\"\\\b\f\n\r\t\u0001\u001f")"),
            "\"\u00e9\U0001F600/\\\"\\\\\\b\\f\\n\\r\\t\\u0001\\u001f\"");
  EXPECT_EQ(round_trip("\"\x7F\""), "\"\x7F\"");
}

TEST(JsonText, ARepeatedKeyKeepsItsFirstPlaceAndLastValue) {
  EXPECT_EQ(round_trip(R"({"a":1,"b":2,"a":3})"), R"({"a": 3, "b": 2})");
}

TEST(JsonText, RefusesWhatIsNotJsonOrTooDeep) {
  EXPECT_THAT(round_trip("{"), HasSubstr("not valid JSON: at byte"));
  EXPECT_THAT(round_trip(""), HasSubstr("not valid JSON"));
  EXPECT_THAT(round_trip("1 2"), HasSubstr("not valid JSON"));
  EXPECT_THAT(round_trip("NaN"), HasSubstr("not valid JSON"));
  EXPECT_THAT(round_trip("\"\\ud800\""), HasSubstr("not valid JSON"));
  EXPECT_THAT(round_trip("\"\xFF\""), HasSubstr("not valid JSON"));
  EXPECT_THAT(round_trip("1e999"), HasSubstr("not valid JSON"));
  EXPECT_THAT(round_trip(std::string(100000, '[')), HasSubstr("nested deeper than 200"));
  EXPECT_THAT(round_trip(std::string(310, '1')), HasSubstr("number overflow"));
  EXPECT_EQ(round_trip(std::string(308, '1')), std::string(308, '1'));
  EXPECT_EQ(round_trip(std::string(200, '[') + std::string(200, ']')), std::string(200, '[') + std::string(200, ']'));
}

TEST(JsonText, ErrorMessagesAreShortAndValidUtf8) {
  for (const std::string& text :
       {std::string(100000, '1'), "\"" + std::string(100000, 'x'), std::string("\"\xFF\xFE")}) {
    const std::string message = round_trip(text);
    EXPECT_LT(message.size(), 400u);
    EXPECT_TRUE(is_valid_utf8(message)) << message;
  }
}

TEST(JsonText, AnObjectOfManyKeysTakesNoQuadraticTime) {
  std::string text = "{";
  for (int i = 0; i < 200000; ++i) text += fmt::format("\"k{}\": {}, ", i, i);
  text += "\"k0\": 7}";
  EXPECT_THAT(round_trip(text), testing::StartsWith("{\"k0\": 7, \"k1\": 1, "));
}

}  // namespace
}  // namespace deepinfer
