#include "sampling/validate.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deepinfer {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kVocabSize = 100;

std::string message(const SamplingParams& params) {
  const Status status = validate(params, kVocabSize);
  return status.ok() ? "" : status.message();
}

TEST(Validate, AcceptsTheDefaultsAndBothEndsOfEveryRange) {
  EXPECT_EQ(message({}), "");
  SamplingParams low{.n = 1, .temperature = 0, .top_p = 1e-300, .top_k = -1, .min_p = 0};
  low.presence_penalty = low.frequency_penalty = -2;
  low.repetition_penalty = 1e-300;
  low.logit_bias = {{0, -100}, {99, 100}};
  low.allowed_token_ids = low.stop_token_ids = {0, 99, 99};
  low.max_tokens = 1, low.min_tokens = 1;
  low.logprobs = low.prompt_logprobs = 0;
  EXPECT_EQ(message(low), "");
  SamplingParams high{.n = 128, .temperature = 1e9, .top_p = 1, .top_k = 1 << 30, .min_p = 1};
  high.presence_penalty = high.frequency_penalty = high.repetition_penalty = 2;
  high.logprobs = high.prompt_logprobs = 20;
  high.stop = {"a"}, high.bad_words = {"b"};
  EXPECT_EQ(message(high), "");
  EXPECT_EQ(message({.detokenize = false}), "");
}

TEST(Validate, RefusesEachNumberOutsideItsRangeByNameAndValue) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_THAT(message({.n = 0}), HasSubstr("n 0: give a count from 1 to 128"));
  EXPECT_THAT(message({.n = 129}), HasSubstr("n 129"));
  EXPECT_THAT(message({.temperature = -1}), HasSubstr("temperature -1"));
  EXPECT_THAT(message({.temperature = kNan}), HasSubstr("temperature nan"));
  EXPECT_THAT(message({.temperature = kInfinity}), HasSubstr("temperature inf"));
  EXPECT_THAT(message({.top_p = 0}), HasSubstr("top_p 0: give a number above 0, up to 1"));
  EXPECT_THAT(message({.top_p = 1.5}), HasSubstr("top_p 1.5"));
  EXPECT_THAT(message({.top_p = kNan}), HasSubstr("top_p nan"));
  EXPECT_THAT(message({.top_k = -2}), HasSubstr("top_k -2"));
  EXPECT_THAT(message({.min_p = 2}), HasSubstr("min_p 2: give a number from 0 to 1"));
  EXPECT_THAT(message({.min_p = -0.1}), HasSubstr("min_p -0.1"));
  EXPECT_THAT(message({.min_p = kNan}), HasSubstr("min_p nan"));
  EXPECT_THAT(message({.presence_penalty = 2.1}), HasSubstr("presence_penalty 2.1: give a number from -2 to 2"));
  EXPECT_THAT(message({.presence_penalty = kNan}), HasSubstr("presence_penalty nan"));
  EXPECT_THAT(message({.frequency_penalty = -2.1}), HasSubstr("frequency_penalty -2.1"));
  EXPECT_THAT(message({.repetition_penalty = 0}), HasSubstr("repetition_penalty 0: give a number above 0, up to 2"));
  EXPECT_THAT(message({.repetition_penalty = 2.5}), HasSubstr("repetition_penalty 2.5"));
  EXPECT_THAT(message({.repetition_penalty = kNan}), HasSubstr("repetition_penalty nan"));
  EXPECT_THAT(message({.max_tokens = 0}), HasSubstr("max_tokens 0"));
  EXPECT_THAT(message({.min_tokens = -1}), HasSubstr("min_tokens -1"));
  EXPECT_THAT(message({.max_tokens = 5, .min_tokens = 6}), AllOf(HasSubstr("min_tokens 6"), HasSubstr("which is 5")));
  EXPECT_THAT(message({.logprobs = 21}), HasSubstr("logprobs 21: give a number from 0 to 20"));
  EXPECT_THAT(message({.logprobs = -1}), HasSubstr("logprobs -1"));
  EXPECT_THAT(message({.prompt_logprobs = 21}), HasSubstr("prompt_logprobs 21"));
}

TEST(Validate, RefusesTokenIdsOutsideTheVocabularyByField) {
  EXPECT_THAT(message({.logit_bias = {{100, 0}}}),
              AllOf(HasSubstr("logit_bias"), HasSubstr("100"), HasSubstr("0 to 99")));
  EXPECT_THAT(message({.allowed_token_ids = {5, -1}}), AllOf(HasSubstr("allowed_token_ids"), HasSubstr("-1")));
  EXPECT_THAT(message({.stop_token_ids = {100}}), AllOf(HasSubstr("stop_token_ids"), HasSubstr("100")));
}

TEST(Validate, RefusesBiasesOutsideTheirRangeAndTwoForOneToken) {
  EXPECT_THAT(message({.logit_bias = {{7, 100.5}}}), AllOf(HasSubstr("logit_bias of token 7"), HasSubstr("100.5")));
  EXPECT_THAT(message({.logit_bias = {{7, NAN}}}), AllOf(HasSubstr("logit_bias of token 7"), HasSubstr("nan")));
  EXPECT_THAT(message({.logit_bias = {{7, 1}, {8, 1}, {7, 1}}}),
              AllOf(HasSubstr("logit_bias"), HasSubstr("7 stands twice")));
}

TEST(Validate, RefusesEmptyStringsAndStopStringsWithoutText) {
  EXPECT_THAT(message({.stop = {"a", ""}}), HasSubstr("stop: string 1 is empty"));
  EXPECT_THAT(message({.bad_words = {""}}), HasSubstr("bad_words: string 0 is empty"));
  EXPECT_THAT(message({.stop = {"a"}, .detokenize = false}), AllOf(HasSubstr("stop"), HasSubstr("detokenize false")));
}

}  // namespace
}  // namespace deepinfer
