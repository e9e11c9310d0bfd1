#include "runtime/session.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backends/cpu/cpu_device.h"
#include "runtime/loaded_model.h"

namespace deepinfer {
namespace {

using testing::HasSubstr;
using Ids = std::vector<int32_t>;

// tiny_full with exact numerics; loaded once.
Model& model() {
  static const std::unique_ptr<Device> device = make_cpu_device({.num_threads = 2}).value();
  static const LoadedModel loaded =
      load_model(*device, std::string(DEEPINFER_TESTS_DIR) + "/golden/model/tiny_full", {.numerics = Numerics::kExact})
          .value();
  return *loaded.model;
}

GenerationOptions greedy(int64_t max_tokens) {
  GenerationOptions options;
  options.sampling.temperature = 0;
  options.sampling.max_tokens = max_tokens;
  return options;
}

GenerationOptions sampled(int64_t max_tokens, uint64_t seed = 5) {
  GenerationOptions options;
  options.sampling.max_tokens = max_tokens;
  options.seed = seed;
  return options;
}

GenerationResult generate(Session& session, const Ids& prompt, const GenerationOptions& options) {
  Ids streamed;
  Result<GenerationResult> result =
      session.generate(prompt, options, [&](int32_t token) { streamed.push_back(token); });
  EXPECT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(streamed, result->tokens);
  return std::move(result).value();
}

const Ids kPrompt = {0, 17, 4, 250, 33, 33, 8, 91, 2, 7, 7};

TEST(Session, gives_the_same_bits_for_every_chunk_size_and_every_way_to_grow) {
  Session whole(model(), 1000);
  const std::span<const float> row = whole.process(kPrompt).value();
  const std::vector<float> expected(row.begin(), row.end());
  for (const int64_t chunk : {1, 2, 3, 5, 10}) {
    Session session(model(), chunk);
    const std::span<const float> now = session.process(kPrompt).value();
    EXPECT_EQ(std::vector<float>(now.begin(), now.end()), expected) << "chunks of " << chunk;
  }
  Session growing(model(), 4);
  for (const size_t length : {2, 3, 9, 11}) {
    const std::span<const float> now = growing.process(std::span(kPrompt).first(length)).value();
    if (length < kPrompt.size()) continue;
    EXPECT_EQ(std::vector<float>(now.begin(), now.end()), expected);
  }
  // The same tokens once more, and others in between: nothing stays behind.
  for (const Ids& other : {kPrompt, Ids{0, 17, 5}, kPrompt}) static_cast<void>(growing.process(other).value());
  const std::span<const float> now = growing.process(kPrompt).value();
  EXPECT_EQ(std::vector<float>(now.begin(), now.end()), expected);
}

TEST(Session, gives_the_same_tokens_for_the_same_seed_and_others_for_another) {
  Session first(model(), 3), second(model(), 512);
  const GenerationResult expected = generate(first, kPrompt, sampled(40));
  EXPECT_EQ(expected.tokens.size(), 40u);
  EXPECT_EQ(expected.reason, FinishReason::kLength);
  EXPECT_EQ(generate(second, kPrompt, sampled(40)).tokens, expected.tokens);
  EXPECT_EQ(generate(second, kPrompt, sampled(40)).tokens, expected.tokens) << "in a session that was used before";
  EXPECT_NE(generate(second, kPrompt, sampled(40, 6)).tokens, expected.tokens);
}

TEST(Session, continues_what_it_holds_and_counts_it) {
  Session session(model(), 4), fresh(model(), 4);
  const GenerationResult first = generate(session, kPrompt, greedy(6));
  EXPECT_EQ(first.num_prompt_tokens, 11);
  EXPECT_EQ(first.num_cached_tokens, 0);
  Ids next = kPrompt;
  next.insert(next.end(), first.tokens.begin(), first.tokens.end());
  next.push_back(9);
  const GenerationResult second = generate(session, next, greedy(6));
  EXPECT_EQ(second.num_prompt_tokens, 18);
  EXPECT_EQ(second.num_cached_tokens, 16) << "all but the last answer token, which was never an input, and the new one";
  EXPECT_EQ(second.tokens, generate(fresh, next, greedy(6)).tokens);
  EXPECT_EQ(generate(session, {0, 1}, greedy(2)).num_cached_tokens, 0) << "another conversation";
}

TEST(Session, ends_before_a_stop_token) {
  Session session(model());
  const Ids all = generate(session, kPrompt, greedy(8)).tokens;
  GenerationOptions options = greedy(8);
  options.stop_tokens = {all[3]};
  const GenerationResult result = generate(session, kPrompt, options);
  EXPECT_EQ(result.reason, FinishReason::kStop);
  EXPECT_EQ(result.tokens, Ids(all.begin(), std::find(all.begin(), all.end(), all[3])));
}

TEST(Session, stops_when_cancelled_and_is_usable_afterwards) {
  Session session(model(), 2), fresh(model());
  std::atomic<bool> cancel{true};
  GenerationOptions options = greedy(20);
  options.cancel = &cancel;
  GenerationResult result = generate(session, kPrompt, options);
  EXPECT_EQ(result.reason, FinishReason::kAborted);
  EXPECT_TRUE(result.tokens.empty());
  cancel = false;
  int seen = 0;
  result = session.generate(kPrompt, options, [&](int32_t) { cancel = ++seen == 3; }).value();
  EXPECT_EQ(result.reason, FinishReason::kAborted);
  EXPECT_EQ(result.tokens.size(), 3u);
  cancel = false;
  EXPECT_EQ(generate(session, kPrompt, options).tokens, generate(fresh, kPrompt, greedy(20)).tokens);
}

TEST(Session, honours_bias_allowed_tokens_and_min_tokens) {
  Session session(model());
  GenerationOptions options = sampled(30);
  options.sampling.allowed_token_ids = {5, 6, 7};
  options.sampling.logit_bias = {{5, 50.0}};
  options.sampling.min_tokens = 20;
  options.stop_tokens = {5};
  const GenerationResult result = generate(session, kPrompt, options);
  EXPECT_EQ(result.reason, FinishReason::kStop);
  EXPECT_EQ(result.tokens.size(), 20u) << "the stop token is wanted from the first step on";
  for (const int32_t token : result.tokens) EXPECT_TRUE(token == 6 || token == 7) << token;
}

TEST(Session, ends_at_the_model_s_context) {
  const int64_t context = model().config().max_position_embeddings;
  if (context > 4096) GTEST_SKIP() << "the model's context of " << context << " takes too long to fill";
  Session session(model());
  const GenerationResult result = generate(session, Ids(context - 2, 5), sampled(10));
  EXPECT_EQ(result.reason, FinishReason::kLength);
  EXPECT_EQ(result.tokens.size(), 2u);
}

TEST(Session, refuses_bad_prompts_and_settings_by_their_values) {
  Session session(model());
  const auto message = [&](const Ids& prompt, const GenerationOptions& options) {
    const auto result = session.generate(prompt, options, [](int32_t) { ADD_FAILURE() << "a token was drawn"; });
    return result.ok() ? "" : result.status().message();
  };
  EXPECT_THAT(message({}, greedy(1)), HasSubstr("empty"));
  EXPECT_THAT(message({0, 256}, greedy(1)), HasSubstr("256"));
  EXPECT_THAT(message({0, -1}, greedy(1)), HasSubstr("-1"));
  const int64_t context = model().config().max_position_embeddings;
  EXPECT_THAT(message(Ids(context + 1, 0), greedy(1)), HasSubstr(std::to_string(context)));
  GenerationOptions bad = sampled(1);
  bad.sampling.top_p = 1.5;
  EXPECT_THAT(message(kPrompt, bad), HasSubstr("1.5"));
  GenerationOptions several = sampled(1);
  several.sampling.n = 2;
  EXPECT_THAT(message(kPrompt, several), HasSubstr("n at 1"));
}

}  // namespace
}  // namespace deepinfer
