// Bounded replay of the decoder: prompt tokens before a position skip the decoder's layers.
#include <random>

#include "model/golden_model.h"

namespace deepinfer {
namespace {

using Row = std::vector<float>;

// Logits of tokens [num_prompt - 1, end): the prompt in chunks, then token by token.
std::vector<Row> run(Model& model, const std::vector<int32_t>& tokens, int64_t num_prompt, int64_t decoder_begin,
                     bool mask_only, int64_t chunk) {
  SequenceState state = model.make_sequence();
  std::vector<Row> rows;
  std::vector<float> logits;
  while (state.length() < static_cast<int64_t>(tokens.size())) {
    const int64_t begin = state.length();
    const bool prompt = begin < num_prompt;
    const int64_t count = prompt ? std::min(chunk, num_prompt - begin) : 1;
    const LogitRows wanted = begin + count >= num_prompt ? LogitRows::kLast : LogitRows::kNone;
    const SequenceStep step{&state, std::span(tokens).subspan(begin, count), wanted, decoder_begin, mask_only};
    EXPECT_TRUE(model.forward({&step, 1}, logits).ok());
    if (wanted == LogitRows::kLast) rows.push_back(logits);
  }
  return rows;
}

class Replay : public testing::TestWithParam<const char*> {};

TEST_P(Replay, MaskAndCompactGiveTheSameBitsAtAnyChunking) {
  GoldenModel model(GetParam(), Numerics::kOfficial);
  ASSERT_GE(model->plan().first_decoder_layer, 0);
  const std::vector<int32_t> tokens = random_tokens(60, model->config().vocab_size, 1);
  for (const int64_t keep : {8, 11, 20, 49}) {
    const std::vector<Row> expected = run(*model, tokens, 50, 50 - keep, /*mask_only=*/true, 50);
    for (const int64_t chunk : {1, 7, 16, 50}) {
      EXPECT_EQ(run(*model, tokens, 50, 50 - keep, true, chunk), expected) << "mask, keep " << keep;
      EXPECT_EQ(run(*model, tokens, 50, 50 - keep, false, chunk), expected) << "compact, keep " << keep;
    }
  }
}

TEST_P(Replay, TheExactSuffixChangesNothingAndOneTokenLessDoes) {
  GoldenModel model(GetParam(), Numerics::kExact);
  const int64_t exact = model->plan().exact_decoder_suffix(model->config().sliding_window, 0);
  const int64_t num_prompt = exact + 30;
  const std::vector<int32_t> tokens = random_tokens(num_prompt + 12, model->config().vocab_size, 2);
  const std::vector<Row> whole = run(*model, tokens, num_prompt, 0, false, 64);
  EXPECT_EQ(run(*model, tokens, num_prompt, num_prompt - exact, false, 64), whole);
  EXPECT_EQ(run(*model, tokens, num_prompt, num_prompt - exact - 5, false, 9), whole);
  EXPECT_NE(run(*model, tokens, num_prompt, num_prompt - exact + 1, false, 64).front(), whole.front());
}

TEST_P(Replay, BatchMatesWithAndWithoutReplayDoNotMeet) {
  GoldenModel model(GetParam(), Numerics::kOfficial);
  const std::vector<int32_t> a = random_tokens(40, model->config().vocab_size, 3);
  const std::vector<int32_t> b = random_tokens(33, model->config().vocab_size, 4);
  const std::vector<Row> alone_a = run(*model, a, 40, 28, false, 40);
  const std::vector<Row> alone_b = run(*model, b, 33, 0, false, 33);
  SequenceState first = model->make_sequence(), second = model->make_sequence();
  const SequenceStep both[] = {{&first, a, LogitRows::kLast, 28}, {&second, b, LogitRows::kLast, 0}};
  std::vector<float> logits;
  ASSERT_TRUE(model->forward(both, logits).ok());
  const int64_t vocab = model->config().vocab_size;
  EXPECT_EQ(Row(logits.begin(), logits.begin() + vocab), alone_a.front());
  EXPECT_EQ(Row(logits.begin() + vocab, logits.end()), alone_b.front());
}

INSTANTIATE_TEST_SUITE_P(Models, Replay, testing::Values("tiny_full", "tiny_noengram"));

// A sequence continued in blocks that hold copies of another's rows goes on with the same bits.
TEST(PlacedSequence, ContinuesFromCopiedBlocks) {
  GoldenModel model("tiny_full", Numerics::kOfficial);
  const std::vector<int32_t> tokens = random_tokens(200, model->config().vocab_size, 5);
  const CacheLayout& layout = model->kv_layout().cache;
  std::vector<std::unique_ptr<std::byte[]>> memory;
  const auto place_all = [&](SequenceState& state, const std::vector<std::byte*>* from) {
    std::vector<std::byte*> placed;
    size_t i = 0;
    for (size_t g = 0; g < layout.groups.size(); ++g) {
      const int64_t bytes = layout.groups[g].block_bytes;
      for (int64_t b = 0; b * layout.groups[g].tokens_per_block < 256; ++b, ++i) {
        memory.push_back(std::make_unique<std::byte[]>(bytes));
        if (from != nullptr) std::memcpy(memory.back().get(), (*from)[i], bytes);
        state.place_block(static_cast<int>(g), b, memory.back().get());
        placed.push_back(memory.back().get());
      }
    }
    return placed;
  };
  std::vector<float> expected, logits;
  SequenceState first = model->make_placed_sequence();
  ASSERT_TRUE(model->restart(first, {}, 256).ok());
  const std::vector<std::byte*> blocks = place_all(first, nullptr);
  const SequenceStep begin{&first, std::span(tokens).first(131), LogitRows::kNone};
  ASSERT_TRUE(model->forward({&begin, 1}, logits).ok());

  SequenceState second = model->make_placed_sequence();
  ASSERT_TRUE(model->restart(second, std::span(tokens).first(131), 256).ok());
  place_all(second, &blocks);
  const SequenceStep end{&first, std::span(tokens).subspan(131), LogitRows::kAll};
  ASSERT_TRUE(model->forward({&end, 1}, expected).ok());
  const SequenceStep again{&second, std::span(tokens).subspan(131), LogitRows::kAll};
  ASSERT_TRUE(model->forward({&again, 1}, logits).ok());
  EXPECT_EQ(logits, expected);
}

}  // namespace
}  // namespace deepinfer
