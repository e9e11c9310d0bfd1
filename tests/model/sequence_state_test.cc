#include "model/sequence_state.h"

#include <random>

#include <gtest/gtest.h>

#include "backends/cpu/cpu_device.h"

namespace deepinfer {
namespace {

ModelConfig config_of(const std::string& name) {
  return ModelConfig::from_file(std::string(DEEPINFER_TESTS_DIR) + "/golden/model/" + name + "/config.json").value();
}

Device& device() {
  static const std::unique_ptr<Device> cpu = make_cpu_device({.num_threads = 1}).value();
  return *cpu;
}

SequenceState make_state(const ModelConfig& config, int64_t max_rollback, Numerics numerics = Numerics::kOfficial) {
  return SequenceState::with_own_blocks(device(), std::make_shared<KvLayout>(KvLayout::make(config, numerics)),
                                        max_rollback);
}

// The rows of a layer's kind, e.g. KvLayout::window.
ops::RowTable rows_of(const SequenceState& state, std::vector<int> KvLayout::*kind, int layer) {
  return state.rows(state.layout().members[(state.layout().*kind)[layer]]);
}

// Moves a state forward; the compressed id of position p is p.
void advance(SequenceState& state, int64_t num_tokens, bool finish = true) {
  std::vector<int32_t> ids(num_tokens);
  for (int64_t i = 0; i < num_tokens; ++i) ids[i] = static_cast<int32_t>(state.length() + i);
  ASSERT_TRUE(state.begin_step(num_tokens, ids).ok());
  if (finish) state.end_step(num_tokens);
}

// Every row of [begin, end) has memory of its own.
void expect_rows(const ops::RowTable& table, int64_t begin, int64_t end) {
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
    expect_rows(rows_of(state, &KvLayout::window, layer), std::max<int64_t>(0, end - config.sliding_window + 1), end);
    if (!plan.layers[l].is_kv_source) continue;
    const int64_t ratio = plan.layers[l].compress_ratio;
    expect_rows(rows_of(state, &KvLayout::compressed, layer), 0, end / ratio);
    expect_rows(rows_of(state, &KvLayout::index_keys, layer), 0, end / ratio);
    if (ratio > 1) expect_rows(rows_of(state, &KvLayout::open_group, layer), end / ratio * ratio, end);
  }
  ASSERT_EQ(static_cast<int64_t>(state.engram_history().size()), end);
  for (int64_t p = 0; p < end; ++p) ASSERT_EQ(state.engram_history()[p], p);
}

TEST(SequenceState, holds_after_any_steps_and_rollbacks_what_the_next_token_reads) {
  for (const char* name : {"tiny_full", "tiny_noengram"}) {
    const ModelConfig config = config_of(name);
    for (const int64_t max_rollback : {0, 1, 5, 70}) {
      std::mt19937 random(static_cast<uint32_t>(max_rollback));
      SequenceState state = make_state(config, max_rollback);
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
  SequenceState state = make_state(config_of("tiny_full"), 5);
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
  const ModelConfig config = config_of("tiny_noengram");
  for (const int64_t max_rollback : {0, 8}) {
    SequenceState state = make_state(config, max_rollback);
    const KvLayout layout = KvLayout::make(config, Numerics::kOfficial);
    ASSERT_TRUE(state.begin_step(300, {}).ok());
    state.end_step(300);
    int64_t constant = 0;
    for (int t = 300; t < 6000; ++t) {
      ASSERT_TRUE(state.begin_step(1, {}).ok());
      state.end_step(1);
      if (t % 1024 != 0) continue;
      // What is left to grow is a function of the length alone: whole blocks of compressed rows and index keys.
      int64_t growing = 0;
      for (const CacheGroup& group : layout.cache.groups) {
        if (group.retention == CacheGroup::kKeepAll)
          growing += (t + group.tokens_per_block) / group.tokens_per_block * group.block_bytes;
      }
      const int64_t now = state.bytes() - growing;
      EXPECT_EQ(now, constant == 0 ? now : constant) << "after " << t << " tokens";
      constant = now;
    }
  }
}

TEST(SequenceState, stores_rows_as_bf16_unless_numerics_are_exact) {
  const ModelConfig config = config_of("tiny_full");
  const SequenceState official = make_state(config, 0);
  const SequenceState bf16_activations = make_state(config, 0, Numerics::kBf16Activations);
  EXPECT_EQ(rows_of(official, &KvLayout::window, 0).type, ops::RowType::kBf16);
  EXPECT_EQ(rows_of(bf16_activations, &KvLayout::window, 0).type, ops::RowType::kBf16);
  const SequenceState exact = make_state(config, 0, Numerics::kExact);
  EXPECT_EQ(rows_of(exact, &KvLayout::window, 0).type, ops::RowType::kF32);
  EXPECT_EQ(rows_of(exact, &KvLayout::open_group, 1).type, ops::RowType::kF32);
  EXPECT_EQ(rows_of(exact, &KvLayout::compressed, 1).width, config.head_dim);
  EXPECT_EQ(rows_of(exact, &KvLayout::open_group, 1).width, 2 * config.head_dim);
}

TEST(SequenceState, can_move_and_goes_on) {
  const ModelConfig config = config_of("tiny_full");
  SequenceState first = make_state(config, 2);
  advance(first, 70);
  SequenceState state = std::move(first);
  advance(state, 70);
  expect_readable(state, config);
}

}  // namespace
}  // namespace deepinfer
