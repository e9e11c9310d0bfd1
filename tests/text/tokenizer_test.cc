#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/byte_alphabet.h"
#include "text/golden_tokenizer.h"
#include "text/random_text.h"
#include "text/utf8.h"

namespace deepinfer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Vector {
  const char* text;
  std::vector<int32_t> ids;
};

TEST(Tokenizer, EncodesTheTestVectors) {
  const Vector vectors[] = {
      {"Hello! 毕老师！1 + 1 = 2 ĠÑĤÐ²ÑĬÑĢ",
       {19923, 3,   223,   5464, 5008, 1175,  19,   940,   223, 19,  438,   223, 20,
        6113,  257, 76589, 131,  100,  76032, 1628, 76589, 131, 108, 76589, 131, 98}},
      {"<｜User｜>你好<｜Assistant｜><think>推理</think>答案<｜end▁of▁sentence｜>",
       {128803, 30594, 128804, 128821, 36101, 128822, 7624, 1}},
      {"The quick brown fox jumps over the lazy dog.", {671, 4787, 13769, 46012, 54994, 1060, 270, 41638, 6397, 16}},
      {"tabs\tand\nnewlines\r\n\r\n\nand   spaces",
       {86, 10284, 200, 458, 201, 2839, 12678, 204, 201, 204, 271, 458, 262, 13564}},
      {"1234567890 12 345 6789 0.5e-10 3.14159", {6895, 18009, 25744, 18, 223, 736, 223, 18014, 223, 27183, 27,  223,
                                                  18,   16,    23,    71, 15,  553, 223, 21,    16,  9926,  3318}},
      {"def f(x):\n    return x**2  # square\n\n\nclass A:\n\tpass\n",
       {3465, 285, 4042, 3395, 361, 1354, 1527, 666, 20, 223, 1823, 5080, 6328, 3767, 334, 1137, 200, 9762, 201}},
      {"if (a<b && c>=d) { x[i] = y->z; }",
       {394, 343, 67, 93180, 6546, 274, 26404, 70, 11, 680, 1527, 3166, 63, 438, 383, 2105, 92, 29, 837}},
      {"naïve café Zürich — “quotes” ‘single’ … ©®™ €£¥",
       {2720, 91223, 57664, 125388, 616,   2136,  811,   403,   7183,  430,
        2096, 54492, 442,   5532,   13420, 16760, 26819, 21820, 25418, 62019}},
      {"  leading and trailing  ", {223, 6646, 305, 52964, 262}},
      {"", {}},
  };
  for (const Vector& vector : vectors) EXPECT_EQ(golden_tokenizer().encode(vector.text), vector.ids) << vector.text;
}

TEST(Tokenizer, IdsAreLaidOutAsTheFormatSays) {
  const Tokenizer& tokenizer = golden_tokenizer();
  EXPECT_EQ(tokenizer.vocab_size(), 129280);
  EXPECT_EQ(tokenizer.find_token("!"), 3);
  EXPECT_EQ(tokenizer.find_token("q"), 83);
  EXPECT_EQ(tokenizer.find_token(" "), 223);
  EXPECT_EQ(tokenizer.find_token("\n"), 201);
  EXPECT_EQ(tokenizer.find_token(" t"), 259) << "the first merge";
  EXPECT_EQ(tokenizer.find_token("no such token"), std::nullopt);
  size_t longest = 0;
  for (int32_t id = 3; id < 128000; ++id) longest = std::max(longest, tokenizer.token_bytes(id).size());
  EXPECT_EQ(longest, 128u);
}

TEST(Tokenizer, ControlTokensAreTheAddedOnes) {
  const Tokenizer& tokenizer = golden_tokenizer();
  int num_controls = 0;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) num_controls += tokenizer.is_control(id);
  EXPECT_EQ(num_controls, 1283);
  const Vector named[] = {{"<｜begin▁of▁sentence｜>", {0}},
                          {"<｜end▁of▁sentence｜>", {1}},
                          {"<｜▁pad▁｜>", {2}},
                          {"<｜place▁holder▁no▁798｜>", {128798}},
                          {"<｜System｜>", {128799}},
                          {"<|EOT|>", {128805}},
                          {"｜DSML｜", {128825}},
                          {"</dsml:", {128841}},
                          {"<|place_holder_mm_span_0021|>", {128847}},
                          {"<｜deepseek_image｜>", {129264}},
                          {"<|place_holder_mm_span_0442|>", {129279}}};
  for (const Vector& token : named) {
    EXPECT_EQ(tokenizer.find_control_token(token.text), token.ids[0]);
    EXPECT_EQ(tokenizer.token_bytes(token.ids[0]), token.text);
    EXPECT_EQ(tokenizer.token_spelling(token.ids[0]), token.text);
    EXPECT_EQ(tokenizer.encode(std::string("a") + token.text + "b"), (std::vector<int32_t>{67, token.ids[0], 68}));
  }
  EXPECT_EQ(tokenizer.find_control_token(" t"), std::nullopt);
  EXPECT_EQ(tokenizer.token_spelling(259), "\u0120t");
}

TEST(Tokenizer, OrdinaryEncodingNeverGivesAControlTokenAndKeepsTheText) {
  const Tokenizer& tokenizer = golden_tokenizer();
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_control(id)) continue;
    std::string decoded;
    for (const int32_t part : tokenizer.encode_ordinary(tokenizer.token_bytes(id))) {
      ASSERT_FALSE(tokenizer.is_control(part)) << tokenizer.token_bytes(id);
      decoded += tokenizer.token_bytes(part);
    }
    ASSERT_EQ(decoded, tokenizer.token_bytes(id));
  }
}

TEST(Tokenizer, BothEncodingsAgreeOnTextWithoutControlTokens) {
  RandomText random(7);
  for (int i = 0; i < 3000; ++i) {
    const std::string text = random.text(40);
    ASSERT_EQ(golden_tokenizer().encode(text), golden_tokenizer().encode_ordinary(text));
  }
}

TEST(Tokenizer, IllFormedBytesEncodeAsReplacementCharacters) {
  RandomText random(8);
  for (int i = 0; i < 3000; ++i) {
    const std::string bytes = random.bytes(20) + "<think>" + random.bytes(4);
    ASSERT_EQ(golden_tokenizer().encode(bytes), golden_tokenizer().encode(replace_invalid_utf8(bytes)));
    ASSERT_EQ(golden_tokenizer().encode_ordinary(bytes),
              golden_tokenizer().encode_ordinary(replace_invalid_utf8(bytes)));
  }
}

TEST(Tokenizer, AMegabyteOfLettersIsEncodedInASecond) {
  std::string text;
  RandomText random(9);
  for (int i = 0; i < 1 << 20; ++i) text.push_back(static_cast<char>('a' + random.below(26)));
  std::string decoded;
  for (const int32_t id : golden_tokenizer().encode_ordinary(text)) decoded += golden_tokenizer().token_bytes(id);
  EXPECT_EQ(decoded, text);
}

// A complete small file; %MERGES% and the like are replaced by each test.
std::string small_file(const std::string& added = "", const std::string& merges = "\"a b\"",
                       const std::string& extra_model = "", const std::string& normalizer = "null",
                       const std::string& stages = "", const std::string& extra_vocabulary = "") {
  std::string vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelling = spell_bytes(std::string(1, static_cast<char>(byte)));
    if (spelling == "\"" || spelling == "\\") spelling = fmt::format("\\{}", spelling);
    vocabulary += fmt::format("\"{}\":{},", spelling, byte);
  }
  return "{\"normalizer\":" + normalizer + ",\"added_tokens\":[" + added +
         "],\"pre_tokenizer\":{\"type\":\"Sequence\"," + "\"pretokenizers\":[" + stages +
         "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}," + "\"model\":{\"type\":\"BPE\"," +
         extra_model + "\"vocab\":{" + vocabulary + "\"ab\":256" + extra_vocabulary + "},\"merges\":[" + merges + "]}}";
}

std::string replace(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string refusal(const std::string& json) {
  const Result<Tokenizer> tokenizer = Tokenizer::parse(json);
  return tokenizer.ok() ? "accepted" : tokenizer.status().message();
}

TEST(TokenizerFile, MergesMayBeStringsOrPairs) {
  for (const char* merges : {"\"a b\"", "[\"a\",\"b\"]"}) {
    const Result<Tokenizer> tokenizer = Tokenizer::parse(small_file("", merges));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    EXPECT_THAT(tokenizer->encode("cab"), ElementsAre('c', 256));
  }
}

TEST(TokenizerFile, NormalizedAddedTokensAreFoundInWhatTheOthersLeft) {
  const Result<Tokenizer> tokenizer = Tokenizer::parse(
      small_file("{\"id\":257,\"content\":\"xab\",\"normalized\":true},{\"id\":258,\"content\":\"abc\"}"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_THAT(tokenizer->encode("xabc"), ElementsAre('x', 258));
  EXPECT_THAT(tokenizer->encode("xabd"), ElementsAre(257, 'd'));
}

TEST(TokenizerFile, AVocabularyEntryMayBeSpelledOutsideTheAlphabet) {
  const Result<Tokenizer> tokenizer = Tokenizer::parse(small_file("", "\"a b\"", "", "null", "", ",\"\uFF5C\":257"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(tokenizer->token_bytes(257), "\uFF5C");
  EXPECT_EQ(tokenizer->token_spelling(257), "\uFF5C");
  EXPECT_EQ(tokenizer->encode("\uFF5C").size(), 3u);
}

TEST(TokenizerFile, RefusesByNameWhatItDoesNotSupport) {
  const std::string merge = "\"a b\"";
  EXPECT_THAT(refusal(replace(small_file(), "\"BPE\"", "\"Unigram\"")), HasSubstr("model.type is \"Unigram\""));
  EXPECT_THAT(refusal(small_file("", merge, "", "{\"type\":\"NFC\"}")), HasSubstr("normalizer {\"type\":\"NFC\"}"));
  EXPECT_THAT(refusal(small_file("", merge, "\"byte_fallback\":true,")), HasSubstr("model.byte_fallback is true"));
  EXPECT_THAT(refusal(small_file("", merge, "\"ignore_merges\":true,")), HasSubstr("model.ignore_merges is true"));
  EXPECT_THAT(refusal(small_file("", merge, "\"dropout\":0.1,")), HasSubstr("model.dropout is 0.1"));
  EXPECT_THAT(refusal(small_file("", merge, "", "null", "{\"type\":\"Digits\"},")), HasSubstr("type is \"Digits\""));
  EXPECT_THAT(refusal(small_file("", merge, "", "null",
                                 "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Removed\"},")),
              HasSubstr("behavior is \"Removed\""));
  EXPECT_THAT(refusal(small_file("", merge, "", "null",
                                 "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Isolated\","
                                 "\"invert\":true},")),
              HasSubstr("invert is true"));
  EXPECT_THAT(refusal(replace(small_file(), "\"add_prefix_space\":false", "\"add_prefix_space\":true")),
              HasSubstr("add_prefix_space is true"));
  EXPECT_THAT(refusal(small_file("{\"id\":257,\"content\":\"x\",\"lstrip\":true}")), HasSubstr("lstrip is true"));
  EXPECT_THAT(refusal("{\"pre_tokenizer\":null"), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("[]"), HasSubstr("model is missing"));
}

TEST(TokenizerFile, RefusesContradictions) {
  EXPECT_THAT(refusal(small_file("{\"id\":97,\"content\":\"x\"}")), HasSubstr("the vocabulary gives to \"a\""));
  EXPECT_THAT(refusal(small_file("{\"id\":300,\"content\":\"x\"}")), HasSubstr("token id 257 belongs to no token"));
  EXPECT_THAT(refusal(small_file("{\"id\":257,\"content\":\"\"}")), HasSubstr("content is empty"));
  EXPECT_THAT(refusal(small_file("", "\"a c\"")), HasSubstr("model.merges[0] joins \"a\" and \"c\""));
  EXPECT_THAT(refusal(small_file("", "\"ab\"")), HasSubstr("model.merges[0] is \"ab\""));
  EXPECT_THAT(refusal(replace(small_file(), "\"ab\":256", "\"ab\":-1")), HasSubstr("the id of \"ab\" is -1"));
  EXPECT_THAT(refusal(small_file("{\"id\":257,\"content\":\"x\"},{\"id\":258,\"content\":\"x\"}")),
              HasSubstr("tokens 257 and 258 have the same spelling"));
  EXPECT_THAT(refusal(small_file("{\"id\":257,\"content\":\"x\"},{\"id\":257,\"content\":\"x\"}")),
              HasSubstr("listed twice"));
}

TEST(TokenizerFile, AMissingFileIsNamed) {
  EXPECT_THAT(Tokenizer::load("/no/such/tokenizer.json").status().message(), HasSubstr("/no/such/tokenizer.json"));
}

}  // namespace
}  // namespace deepinfer
