#include "model/sequence_state.h"

#include <random>

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

ModelConfig config_of(const std::string& name) {
  return ModelConfig::from_file(std::string(DEEPINFER_TESTS_DIR) + "/golden/model/" + name + "/config.json").value();
}

// Moves a state forward; the compressed id of position p is p.
void advance(SequenceState& state, int64_t num_tokens, bool finish = true) {
  std::vector<int32_t> ids(num_tokens);
  for (int64_t i = 0; i < num_tokens; ++i) ids[i] = static_cast<int32_t>(state.length() + i);
  state.begin_step(num_tokens, ids);
  if (finish) state.end_step(num_tokens);
}

// Every row of [begin, end) has memory of its own.
void expect_rows(const RowStore& store, int64_t begin, int64_t end) {
  const ops::RowTable& table = store.table();
  const std::byte* before = nullptr;
  for (int64_t r = begin; r < end; ++r) {
    ASSERT_NE(table.blocks[r >> table.block_shift], nullptr)
        << "row " << r << " of [" << begin << ", " << end << ") was dropped";
    ASSERT_NE(table.row(r), before);
    before = table.row(r);
  }
}

// What the next token at position `length` may read: windows, whole compressed groups, the open group, all ids.
void expect_readable(const SequenceState& state, const ModelConfig& config) {
  const int64_t end = state.length();
  const LayerPlan plan = LayerPlan::make(config);
  for (size_t l = 0; l < plan.layers.size(); ++l) {
    const int layer = static_cast<int>(l);
    expect_rows(state.window(layer), std::max<int64_t>(0, end - config.sliding_window + 1), end);
    if (!plan.layers[l].is_kv_source) continue;
    const int64_t ratio = plan.layers[l].compress_ratio;
    expect_rows(state.compressed(layer), 0, end / ratio);
    expect_rows(state.index_keys(layer), 0, end / ratio);
    if (ratio > 1) expect_rows(state.open_group(layer), end / ratio * ratio, end);
  }
  ASSERT_EQ(static_cast<int64_t>(state.engram_history().size()), end);
  for (int64_t p = 0; p < end; ++p) ASSERT_EQ(state.engram_history()[p], p);
}

TEST(RowStore, keeps_rows_in_place_while_it_grows_and_reuses_dropped_blocks) {
  RowStore store(ops::RowType::kF32, 3);
  EXPECT_EQ(store.bytes(), 0);
  store.reserve(1);
  std::byte* const first = store.table().row(0);
  store.reserve(1000);
  EXPECT_EQ(store.table().row(0), first);
  expect_rows(store, 0, 1000);
  EXPECT_EQ(store.bytes(), 16 * 64 * 3 * 4);
  store.drop_before(63);
  EXPECT_EQ(store.table().row(0), first) << "a block goes when all of its rows do";
  store.drop_before(200);
  EXPECT_EQ(store.table().blocks[2], nullptr);
  expect_rows(store, 192, 1000);
  store.drop_before(-5);
  store.drop_before(100);
  store.reserve(1024 + 3 * 64);
  EXPECT_EQ(store.bytes(), 16 * 64 * 3 * 4) << "three blocks were free";
  expect_rows(store, 192, 1024 + 3 * 64);
}

TEST(SequenceState, holds_after_any_steps_and_rollbacks_what_the_next_token_reads) {
  for (const char* name : {"tiny_full", "tiny_noengram"}) {
    const ModelConfig config = config_of(name);
    for (const int64_t max_rollback : {0, 1, 5, 70}) {
      std::mt19937 random(static_cast<uint32_t>(max_rollback));
      SequenceState state(config, Numerics::kOfficial, max_rollback);
      int64_t longest = 0;
      for (int step = 0; step < 120; ++step) {
        if (step % 7 == 3) advance(state, 1 + random() % 9, /*finish=*/false);  // a step that failed half way
        advance(state, random() % 4 == 0 ? 1 + random() % 90 : 1 + random() % 3);
        longest = std::max(longest, state.length());
        ASSERT_NO_FATAL_FAILURE(expect_readable(state, config))
            << name << ", rollback " << max_rollback << ", step " << step;
        const int64_t room = state.length() - std::max<int64_t>(0, longest - max_rollback);
        const int64_t back = static_cast<int64_t>(random() % (room + 1));
        ASSERT_TRUE(state.roll_back(back).ok());
        ASSERT_NO_FATAL_FAILURE(expect_readable(state, config))
            << name << ", rollback " << max_rollback << ", step " << step;
      }
    }
  }
}

TEST(SequenceState, refuses_to_roll_back_past_what_it_keeps_and_stays_as_it_was) {
  SequenceState state(config_of("tiny_full"), Numerics::kOfficial, 5);
  EXPECT_TRUE(state.roll_back(0).ok());
  EXPECT_FALSE(state.roll_back(1).ok()) << "nothing was processed yet";
  advance(state, 3);
  EXPECT_TRUE(state.roll_back(3).ok());
  EXPECT_EQ(state.length(), 0);
  advance(state, 100);
  const Status refused = state.roll_back(6);
  EXPECT_FALSE(refused.ok());
  EXPECT_NE(refused.message().find("6 tokens of 100"), std::string::npos) << refused.message();
  EXPECT_FALSE(state.roll_back(INT64_MAX).ok());
  EXPECT_FALSE(state.roll_back(INT64_MIN).ok());
  EXPECT_EQ(state.length(), 100);
  ASSERT_TRUE(state.roll_back(3).ok());
  EXPECT_FALSE(state.roll_back(3).ok()) << "the longest length counts, not the present one";
  advance(state, 2);
  EXPECT_FALSE(state.roll_back(5).ok());
  EXPECT_TRUE(state.roll_back(4).ok());
  EXPECT_EQ(state.length(), 95);
}

TEST(SequenceState, windows_and_open_groups_stay_bounded_while_thousands_of_tokens_pass) {
  const ModelConfig config = config_of("tiny_full");
  for (const int64_t max_rollback : {0, 8}) {
    SequenceState state(config, Numerics::kOfficial, max_rollback);
    advance(state, 300);
    int64_t windows = 0;
    for (int t = 300; t < 6000; ++t) {
      advance(state, 1);
      if (t % 1000 != 0) continue;
      const int64_t now = state.window(0).bytes() + state.window(7).bytes() + state.open_group(1).bytes();
      EXPECT_EQ(now, windows == 0 ? now : windows) << "after " << t << " tokens";
      windows = now;
    }
    // What is left to grow is a function of the length alone: compressed rows, index keys and ids.
    const int64_t block = 64 * 2 * (config.head_dim + config.index_head_dim);
    EXPECT_EQ(state.compressed(1).bytes() + state.index_keys(1).bytes(), (3000 + 63) / 64 * block);
    EXPECT_EQ(state.compressed(4).bytes() + state.index_keys(4).bytes(), (6000 + 63) / 64 * block);
  }
}

TEST(SequenceState, stores_rows_as_bf16_unless_numerics_are_exact) {
  const ModelConfig config = config_of("tiny_full");
  EXPECT_EQ(SequenceState(config, Numerics::kOfficial, 0).window(0).table().type, ops::RowType::kBf16);
  EXPECT_EQ(SequenceState(config, Numerics::kBf16Activations, 0).window(0).table().type, ops::RowType::kBf16);
  SequenceState exact(config, Numerics::kExact, 0);
  EXPECT_EQ(exact.window(0).table().type, ops::RowType::kF32);
  EXPECT_EQ(exact.open_group(1).table().type, ops::RowType::kF32);
  EXPECT_EQ(exact.compressed(1).table().width, config.head_dim);
  EXPECT_EQ(exact.open_group(1).table().width, 2 * config.head_dim);
}

TEST(SequenceState, can_move_and_goes_on) {
  const ModelConfig config = config_of("tiny_full");
  SequenceState first(config, Numerics::kOfficial, 2);
  advance(first, 70);
  SequenceState state = std::move(first);
  advance(state, 70);
  expect_readable(state, config);
}

}  // namespace
}  // namespace deepinfer
