#include "sampling/sequence_sampler.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <new>
#include <random>

#include <gtest/gtest.h>

#include "sampling/philox.h"

namespace {
int64_t num_allocations = 0;
}
// Counts for this whole program. Not inlined, or the compiler takes malloc and delete for a mismatched pair.
[[gnu::noinline]] void* operator new(size_t size) {
  ++num_allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace deepinfer {
namespace {

using Ids = std::vector<int32_t>;
using Words = std::vector<Ids>;

std::vector<float> random_logits(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<float> logits(size);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

// Draws `count` tokens, each from logits of its own; `before` sees every token before it is pushed.
template <typename Before>
void draw(SequenceSampler& sampler, size_t vocab_size, int count, const Before& before) {
  for (int position = 0; position < count; ++position) {
    std::vector<float> logits = random_logits(vocab_size, position);
    const int32_t token = sampler.choose(logits, position);
    before(token, position);
    sampler.push(token);
  }
}

TEST(SequenceSampler, NeutralParametersTouchNothingAndGiveTheSamplersChoice) {
  const SamplingParams params;
  SequenceSampler sequence;
  Sampler plain;
  const Ids prompt = {1, 2, 3}, end = {0};
  sequence.reset({.params = &params,
                  .key = 5,
                  .vocab_size = 300,
                  .tokens = prompt,
                  .num_prompt_tokens = 3,
                  .max_output_tokens = 50,
                  .end_tokens = end});
  for (int position = 3; position < 53; ++position) {
    const std::vector<float> logits = random_logits(300, position);
    std::vector<float> row = logits;
    const int32_t token = sequence.choose(row, position);
    EXPECT_EQ(row, logits);
    EXPECT_EQ(token, plain.sample(logits, position, params, 5));
    sequence.push(token);
  }
  EXPECT_EQ(sequence.num_output(), 50);
}

TEST(SequenceSampler, PenaltiesAndBiasEqualAPlainCalculation) {
  std::mt19937 random(9);
  std::uniform_real_distribution<double> uniform(0, 1);
  SequenceSampler sequence;
  constexpr size_t kVocab = 60;
  for (uint32_t round = 0; round < 100; ++round) {
    SamplingParams params{.temperature = 0};
    if (round % 2 == 0) params.presence_penalty = 4 * uniform(random) - 2;
    if (round % 3 == 0) params.frequency_penalty = 4 * uniform(random) - 2;
    if (round % 5 != 0) params.repetition_penalty = 0.1 + 1.9 * uniform(random);
    if (round % 7 != 0) params.logit_bias = {{3, 2.5}, {17, -40.25}, {59, uniform(random)}};
    Ids tokens;
    const auto num_prompt = static_cast<int64_t>(random() % 20);
    for (int64_t i = 0; i < num_prompt + 5; ++i) tokens.push_back(static_cast<int32_t>(random() % kVocab));
    sequence.reset({.params = &params,
                    .vocab_size = kVocab,
                    .tokens = tokens,
                    .num_prompt_tokens = num_prompt,
                    .max_output_tokens = 30});
    EXPECT_EQ(sequence.num_output(), 5) << "an answer that was there before counts";
    for (int position = 0; position < 25; ++position) {
      std::vector<float> logits = random_logits(kVocab, position * 100 + round);
      std::vector<float> expected = logits;
      for (const auto& [token, bias] : params.logit_bias) expected[token] = static_cast<float>(expected[token] + bias);
      for (size_t id = 0; id < kVocab; ++id) {
        const auto in_prompt = std::count(tokens.begin(), tokens.begin() + num_prompt, static_cast<int32_t>(id));
        const auto in_output = std::count(tokens.begin() + num_prompt, tokens.end(), static_cast<int32_t>(id));
        double logit = expected[id];
        if (in_prompt + in_output > 0) {
          logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
        }
        logit -= params.frequency_penalty * in_output;
        if (in_output > 0) logit -= params.presence_penalty;
        expected[id] = static_cast<float>(logit);
      }
      const int32_t token = sequence.choose(logits, position);
      ASSERT_EQ(logits, expected) << "round " << round << ", position " << position;
      EXPECT_EQ(token, argmax(expected));
      tokens.push_back(token);
      sequence.push(token);
    }
  }
}

TEST(SequenceSampler, PoppedTokensLeaveNoTrace) {
  std::mt19937 random(2);
  SamplingParams params;
  params.presence_penalty = 0.7, params.frequency_penalty = 0.4, params.repetition_penalty = 1.3;
  params.min_tokens = 12, params.max_tokens = 40;
  const Ids prompt = {1, 2, 3, 2}, end = {0, 7};
  const Words words = {{4}, {5, 6}, {1, 1, 2}};
  const SequenceSetup setup{.params = &params,
                            .key = 3,
                            .vocab_size = 12,
                            .tokens = prompt,
                            .num_prompt_tokens = 4,
                            .max_output_tokens = 40,
                            .bad_words = words,
                            .end_tokens = end};
  SequenceSampler wanders, straight;
  wanders.reset(setup);
  straight.reset(setup);
  for (int position = 0; position < 30; ++position) {
    const auto detour = static_cast<int64_t>(random() % 9);
    for (int64_t i = 0; i < detour; ++i) wanders.push(static_cast<int32_t>(random() % 12));
    wanders.pop(detour);
    std::vector<float> one = random_logits(12, position), other = one;
    const int32_t token = wanders.choose(one, position);
    ASSERT_EQ(straight.choose(other, position), token);
    ASSERT_EQ(one, other);
    ASSERT_EQ(wanders.num_output(), straight.num_output());
    wanders.push(token);
    straight.push(token);
  }
}

TEST(SequenceSampler, AUsedSamplerIsAsNewAfterReset) {
  SamplingParams penalised, other{.temperature = 0.9};
  penalised.repetition_penalty = 1.5;
  other.frequency_penalty = 1;
  const Ids prompt = {1, 2, 3};
  SequenceSampler used, fresh;
  used.reset(
      {.params = &penalised, .vocab_size = 50, .tokens = prompt, .num_prompt_tokens = 3, .max_output_tokens = 20});
  draw(used, 50, 20, [](int32_t, int) {});
  for (SequenceSampler* sampler : {&used, &fresh}) {
    sampler->reset(
        {.params = &other, .vocab_size = 50, .tokens = prompt, .num_prompt_tokens = 3, .max_output_tokens = 20});
  }
  for (int position = 0; position < 20; ++position) {
    std::vector<float> one = random_logits(50, position), two = one;
    const int32_t token = used.choose(one, position);
    EXPECT_EQ(fresh.choose(two, position), token);
    EXPECT_EQ(one, two);
    used.push(token);
    fresh.push(token);
  }
}

TEST(SequenceSampler, MinTokensHoldsBackEveryEndToken) {
  SamplingParams params{.temperature = 3};
  params.max_tokens = 10000, params.min_tokens = 9000;
  const Ids end = {0, 3};
  SequenceSampler sequence;
  sequence.reset({.params = &params, .vocab_size = 8, .max_output_tokens = 10000, .end_tokens = end});
  int ends_after = 0;
  draw(sequence, 8, 10000, [&](int32_t token, int position) {
    const bool is_end = token == 0 || token == 3;
    ASSERT_FALSE(is_end && position < 9000) << "at " << position;
    ends_after += is_end;
  });
  EXPECT_GT(ends_after, 100) << "once the answer is long enough, they are tokens like others";
}

TEST(SequenceSampler, BadWordsNeverAppear) {
  const SamplingParams params{.temperature = 3};
  const Words words = {{2}, {1, 1}, {3, 4, 3}, {5, 6, 5, 6}};
  SequenceSampler sequence;
  const Ids prompt = {1, 3, 4};  // a word may begin in the prompt: only the answer is looked at
  sequence.reset({.params = &params,
                  .vocab_size = 8,
                  .tokens = prompt,
                  .num_prompt_tokens = 3,
                  .max_output_tokens = 10000,
                  .bad_words = words});
  Ids output;
  draw(sequence, 8, 10000, [&](int32_t token, int) { output.push_back(token); });
  for (const Ids& word : words) {
    EXPECT_EQ(std::search(output.begin(), output.end(), word.begin(), word.end()), output.end());
  }
  for (const Ids& harmless : Words{{1}, {3, 4}, {5, 6, 5}, {4, 3}}) {
    EXPECT_NE(std::search(output.begin(), output.end(), harmless.begin(), harmless.end()), output.end());
  }
}

TEST(SequenceSampler, OnlyAllowedTokensAreChosen) {
  SamplingParams params{.temperature = 5};
  params.allowed_token_ids = {199, 7, 3, 7, 120};
  params.logit_bias = {{50, 100}};
  SequenceSampler sequence;
  sequence.reset({.params = &params, .vocab_size = 200, .max_output_tokens = 3000});
  std::vector<int> counts(200);
  draw(sequence, 200, 3000, [&](int32_t token, int) { ++counts[token]; });
  for (int id = 0; id < 200; ++id) EXPECT_EQ(counts[id] > 0, id == 3 || id == 7 || id == 120 || id == 199) << id;
}

TEST(SequenceSampler, IfBansLeaveNothingTheLowestAllowedTokenIsChosen) {
  SequenceSampler sequence;
  const auto choose = [&](const Ids& allowed, const Words& words, const Ids& end, std::vector<float> logits) {
    SamplingParams params;
    params.allowed_token_ids = allowed;
    params.min_tokens = 1;
    sequence.reset({.params = &params,
                    .vocab_size = static_cast<int64_t>(logits.size()),
                    .max_output_tokens = 1,
                    .bad_words = words,
                    .end_tokens = end});
    return sequence.choose(logits, 0);
  };
  const std::vector<float> flat(6, 1.0f);
  EXPECT_EQ(choose({}, {{0}, {1}, {2}}, {3, 4, 5}, flat), 0) << "words and min_tokens ban all";
  EXPECT_EQ(choose({5, 4}, {{4}}, {5}, flat), 4);
  EXPECT_EQ(choose({5, 4}, {{4}}, {}, flat), 5) << "one is left";
  EXPECT_EQ(choose({2, 4}, {{4}}, {}, {1, 1, -INFINITY, 1, 1, 1}), 4) << "2 was impossible from the start";
  EXPECT_EQ(choose({4, 2}, {}, {}, {1, 1, -INFINITY, 1, -INFINITY, 1}), 2) << "so were both allowed tokens";
  EXPECT_EQ(choose({}, {}, {}, std::vector<float>(6, -INFINITY)), 0);
}

TEST(SequenceSampler, ChoicesDrawFromStreamsOfTheirOwnAndTheFirstIsTheSeeds) {
  const SamplingParams params;
  const auto answer = [&](uint64_t key) {
    SequenceSampler sequence;
    sequence.reset({.params = &params, .key = key, .vocab_size = 100, .max_output_tokens = 50});
    Ids tokens;
    draw(sequence, 100, 50, [&](int32_t token, int) { tokens.push_back(token); });
    return tokens;
  };
  std::vector<Ids> answers;
  for (int32_t choice = 0; choice < 4; ++choice) answers.push_back(answer(choice_key(77, choice)));
  EXPECT_EQ(answers[0], answer(77));
  for (int a = 0; a < 4; ++a) {
    for (int b = 0; b < a; ++b) EXPECT_NE(answers[a], answers[b]);
  }
}

TEST(SequenceSampler, AllocatesNothingAfterReset) {
  SamplingParams params{.temperature = 1.1, .top_p = 0.9, .top_k = 50, .min_p = 0.001};
  params.presence_penalty = 0.7, params.frequency_penalty = 0.4, params.repetition_penalty = 1.3;
  params.logit_bias = {{5, 1.0}};
  params.min_tokens = 100, params.max_tokens = 200;
  for (int id = 0; id < 900; ++id) params.allowed_token_ids.push_back(id);
  const Ids prompt = {1, 2, 3}, end = {0};
  const Words words = {{4}, {5, 6}};
  SequenceSampler sequence;
  sequence.reset({.params = &params,
                  .vocab_size = 1000,
                  .tokens = prompt,
                  .num_prompt_tokens = 3,
                  .max_output_tokens = 200,
                  .bad_words = words,
                  .end_tokens = end});
  const std::vector<float> logits = random_logits(1000, 1);
  std::vector<float> row = logits;
  const int64_t before = num_allocations;
  for (int position = 0; position < 190; ++position) {
    std::copy(logits.begin(), logits.end(), row.begin());
    sequence.push(sequence.choose(row, position));
    for (int i = 0; i < 5; ++i) sequence.push(i);
    sequence.pop(5);
  }
  EXPECT_EQ(num_allocations, before);
  row = std::vector<float>(2000);
  EXPECT_GT(num_allocations, before) << "the counter works";
}

}  // namespace
}  // namespace deepinfer
