#include "checkpoint/safetensors.h"

#include <cstring>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/temp_folder.h"

namespace deepinfer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Result<std::vector<StoredTensor>> parse(const std::string& file) {
  return parse_safetensors("m.safetensors", std::as_bytes(std::span(file)));
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape, offsets);
}

std::string braces(const std::string& entries) { return fmt::format("{{{}}}", entries); }

std::string raw_length(uint64_t length, std::string rest) {
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + rest;
}

TEST(Safetensors, GivesTheTensorsInTheOrderOfTheirBytes) {
  const std::string header = braces(entry("b", "BF16", "[2,1]", "[3,7]") + "," + entry("a", "I8", "[3]", "[0,3]") +
                                    R"(,"__metadata__":{"format":"pt"})") +
                             "   ";
  const std::string file = safetensors_file(header, "abcdefg");
  const auto tensors = parse(file);
  ASSERT_TRUE(tensors.ok()) << tensors.status().message();
  ASSERT_EQ(tensors->size(), 2u);
  const StoredTensor& a = (*tensors)[0];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.dtype, DType::kI8);
  EXPECT_THAT(a.shape, ElementsAre(3));
  EXPECT_EQ(std::memcmp(a.data, "abc", 3), 0);
  const StoredTensor& b = (*tensors)[1];
  EXPECT_EQ(b.dtype, DType::kBf16);
  EXPECT_EQ(b.bytes, 4u);
  EXPECT_EQ(std::memcmp(b.data, "defg", 4), 0);
}

TEST(Safetensors, TensorsMayBeEmptyScalarOrOfATypeTheEngineDoesNotUse) {
  const std::string header =
      braces(entry("none", "F32", "[0,7]", "[0,0]") + "," + entry("one", "F64", "[]", "[0,8]") + "," +
             entry("packed", "F4", "[3,2]", "[8,11]") + "," + entry("end", "I8", "[0]", "[11,11]"));
  const auto tensors = parse(safetensors_file(header, "12345678abc"));
  ASSERT_TRUE(tensors.ok()) << tensors.status().message();
  EXPECT_EQ(tensors->size(), 4u);
}

TEST(Safetensors, AFileWithoutTensorsIsFine) {
  const auto tensors = parse(safetensors_file("{}", ""));
  ASSERT_TRUE(tensors.ok());
  EXPECT_THAT(*tensors, IsEmpty());
}

struct BadFile {
  const char* what;
  std::string content;
  std::vector<const char*> fragments;
};

std::vector<BadFile> bad_files() {
  const auto one = [](const std::string& e, const std::string& data) { return safetensors_file(braces(e), data); };
  return {
      {"nothing", "", {"0 bytes are too few"}},
      {"half a length", "1234567", {"7 bytes are too few", "download it again"}},
      {"length zero", raw_length(0, "{}"), {"header length is 0"}},
      {"length over the file", raw_length(3, "{}"), {"header length is 3", "only 2 bytes follow"}},
      {"length over the limit", raw_length(100'000'001, "{}"), {"100000001", "over the format's limit of 100000000"}},
      {"length of all ones", raw_length(~uint64_t{0}, "{}"), {"18446744073709551615", "not a safetensors file"}},
      {"text instead of a header", raw_length(5, "hello"), {"not valid JSON"}},
      {"a header cut off", raw_length(9, R"({"a":{"dt)"), {"not valid JSON"}},
      {"an array as header", raw_length(2, "[]"), {"not a JSON object"}},
      {"a name that is not UTF-8", one("\"\xff\xfe\":{}", ""), {"not valid UTF-8"}},
      {"deep nesting", safetensors_file(std::string(100000, '['), ""), {"not valid JSON"}},
      {"an entry that is no object", one(R"("a":3)", ""), {"entry \"a\" is not an object"}},
      {"metadata that is no object", one(R"("__metadata__":3)", ""), {"entry \"__metadata__\" is not an object"}},
      {"an empty name", one(entry("", "I8", "[1]", "[0,1]"), "x"), {"empty string as its name"}},
      {"no dtype", one(R"("a":{"shape":[1],"data_offsets":[0,1]})", "x"), {"tensor \"a\"", "\"dtype\""}},
      {"a numeric dtype",
       one(R"("a":{"dtype":1,"shape":[1],"data_offsets":[0,1]})", "x"),
       {"tensor \"a\"", "\"dtype\""}},
      {"an unknown dtype", one(entry("a", "F12", "[1]", "[0,1]"), "x"), {"tensor \"a\"", "dtype \"F12\" is unknown"}},
      {"no shape", one(R"("a":{"dtype":"I8","data_offsets":[0,1]})", "x"), {"tensor \"a\"", "\"shape\""}},
      {"a negative size", one(entry("a", "I8", "[-1]", "[0,1]"), "x"), {"tensor \"a\"", "shape entry 0"}},
      {"a real size", one(entry("a", "I8", "[1.0]", "[0,1]"), "x"), {"tensor \"a\"", "shape entry 0"}},
      {"a size over int64", one(entry("a", "I8", "[9223372036854775808]", "[0,1]"), "x"), {"shape entry 0"}},
      {"a shape that overflows",
       one(entry("a", "I8", "[4294967296,4294967296,16]", "[0,1]"), "x"),
       {"tensor \"a\"", "[4294967296, 4294967296, 16] is too large"}},
      {"a shape whose bits overflow", one(entry("a", "F64", "[576460752303423488]", "[0,1]"), "x"), {"too large"}},
      {"too many dimensions",
       one(entry("a", "I8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), "x"),
       {"9 dimensions", "at most 8"}},
      {"half a byte", one(entry("a", "F4", "[3]", "[0,1]"), "x"), {"[3] values of F4", "whole number of bytes"}},
      {"no offsets", one(R"("a":{"dtype":"I8","shape":[1]})", "x"), {"tensor \"a\"", "data_offsets"}},
      {"one offset", one(entry("a", "I8", "[1]", "[0]"), "x"), {"tensor \"a\"", "data_offsets"}},
      {"three offsets", one(entry("a", "I8", "[1]", "[0,1,2]"), "x"), {"data_offsets"}},
      {"a negative offset", one(entry("a", "I8", "[1]", "[-1,0]"), "x"), {"data_offsets"}},
      {"an offset as text", one(entry("a", "I8", "[1]", R"(["0","1"])"), "x"), {"data_offsets"}},
      {"offsets the wrong way round", one(entry("a", "I8", "[1]", "[1,0]"), "x"), {"end at 0 before they begin at 1"}},
      {"a truncated file",
       one(entry("a", "I8", "[100]", "[0,100]"), "x"),
       {"m.safetensors: tensor \"a\"", "end at 100", "1 bytes of data", "truncated", "download it again"}},
      {"an end near 2^64",
       one(entry("a", "I8", "[1]", "[18446744073709551614,18446744073709551615]"), "x"),
       {"truncated"}},
      {"fewer bytes than the shape",
       one(entry("a", "F32", "[2]", "[0,4]"), "abcd"),
       {"F32 of [2] needs 8 bytes", "span 4"}},
      {"more bytes than the shape",
       one(entry("a", "BF16", "[1]", "[0,4]"), "abcd"),
       {"BF16 of [1] needs 2 bytes", "span 4"}},
      {"overlapping tensors",
       one(entry("a", "I8", "[3]", "[0,3]") + "," + entry("b", "I8", "[2]", "[2,4]"), "abcd"),
       {"tensors \"a\" and \"b\" overlap"}},
      {"two tensors at one place",
       one(entry("a", "I8", "[2]", "[0,2]") + "," + entry("b", "I8", "[2]", "[0,2]"), "ab"),
       {"overlap"}},
      {"a gap",
       one(entry("a", "I8", "[1]", "[0,1]") + "," + entry("b", "I8", "[1]", "[2,3]"), "abc"),
       {"1 bytes before tensor \"b\" belong to no tensor"}},
      {"bytes left over", one(entry("a", "I8", "[1]", "[0,1]"), "abc"), {"2 bytes after the last tensor"}},
      {"a name twice",
       one(entry("a", "I8", "[1]", "[0,1]") + "," + entry("a", "I8", "[1]", "[1,2]"), "ab"),
       {"tensor \"a\" appears twice"}},
  };
}

TEST(Safetensors, SaysWhatIsWrongWithADamagedFile) {
  for (const BadFile& bad : bad_files()) {
    SCOPED_TRACE(bad.what);
    const auto result = parse(bad.content);
    ASSERT_FALSE(result.ok());
    EXPECT_THAT(result.status().message(), HasSubstr("m.safetensors"));
    for (const char* fragment : bad.fragments) EXPECT_THAT(result.status().message(), HasSubstr(fragment));
  }
}

TEST(Safetensors, ControlCharactersAndLongNamesAreTamedInMessages) {
  const auto result =
      parse(safetensors_file(braces(entry("a\\n" + std::string(500, 'x'), "F12", "[1]", "[0,1]")), "x"));
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.status().message(), HasSubstr("\"a\\x0axxx"));
  EXPECT_LT(result.status().message().size(), 400u);
}

TEST(Safetensors, EveryPrefixOfAGoodFileIsRefusedWithoutReadingPastItsEnd) {
  const std::string file =
      safetensors_file(braces(entry("a", "I8", "[3]", "[0,3]") + "," + entry("b", "BF16", "[2]", "[3,7]")), "abcdefg");
  ASSERT_TRUE(parse(file).ok());
  for (size_t length = 0; length < file.size(); ++length) {
    // A copy of exactly this size, so that a sanitizer sees any read past it.
    const std::vector<std::byte> copy(reinterpret_cast<const std::byte*>(file.data()),
                                      reinterpret_cast<const std::byte*>(file.data()) + length);
    EXPECT_FALSE(parse_safetensors("m.safetensors", copy).ok()) << length;
  }
}

TEST(Safetensors, WhateverSingleByteIsChangedTheTensorsStayInsideOfTheFile) {
  const std::string good =
      safetensors_file(braces(entry("a", "I8", "[3]", "[0,3]") + "," + entry("b", "BF16", "[2]", "[3,7]")), "abcdefg");
  std::mt19937 random(5);
  for (int i = 0; i < 20000; ++i) {
    std::string file = good;
    file[random() % file.size()] = static_cast<char>(random());
    const auto tensors = parse(file);
    if (!tensors.ok()) continue;
    const auto* begin = reinterpret_cast<const std::byte*>(file.data());
    for (const StoredTensor& tensor : *tensors) {
      ASSERT_GE(tensor.data, begin);
      ASSERT_LE(tensor.data + tensor.bytes, begin + file.size());
    }
  }
}

TEST(DType, EveryNameLeadsBackToItself) {
  for (const char* name : {"BF16",    "F32",         "F8_E4M3",     "F8_E8M0", "I8",      "BOOL", "U8",  "I16",
                           "U16",     "F16",         "I32",         "U32",     "I64",     "U64",  "F64", "C64",
                           "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F6_E2M3", "F6_E3M2", "F4"}) {
    const auto dtype = dtype_from_name(name);
    ASSERT_TRUE(dtype.has_value()) << name;
    EXPECT_EQ(name_of(*dtype), name);
  }
  EXPECT_FALSE(dtype_from_name("bf16").has_value());
  EXPECT_TRUE(is_supported(DType::kI8));
  EXPECT_FALSE(is_supported(DType::kF16));
}

}  // namespace
}  // namespace deepinfer
