#include "scheduler/voting.h"

#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

constexpr BallotRecord kIdle{};
constexpr BallotRecord kWaits{true, false, 0};
constexpr BallotRecord kDecodes{false, true, 8};
constexpr BallotRecord kBoth{true, true, 8};

// The step at which the first prefill comes.
int64_t first_prefill(const std::vector<BallotRecord>& ranks, const VotingOptions& options = {}) {
  VotingState state;
  for (int64_t step = 0; step < 1000; ++step) {
    if (vote(ranks, options, state) == StepKind::kPrefill) return step;
  }
  return -1;
}

TEST(Voting, OneWaitingRankGetsItsTurnAfterTheAnyIntervalAndAllOfThemAfterTheOther) {
  EXPECT_EQ(first_prefill({kBoth, kDecodes}), 100);
  EXPECT_EQ(first_prefill({kBoth, kBoth}), 70);
  EXPECT_EQ(first_prefill({kBoth, kWaits}), 70);
  EXPECT_EQ(first_prefill({kWaits, kIdle}), 0) << "nobody decodes";
  EXPECT_EQ(first_prefill({kDecodes, kIdle}), -1);
  EXPECT_EQ(first_prefill({kBoth}), 70) << "with one rank the smaller interval holds";
  EXPECT_EQ(first_prefill({kBoth}, {.all_interval = 70, .any_interval = 30}), 30);
}

TEST(Voting, NobodyHasAnythingMeansIdle) {
  VotingState state;
  EXPECT_EQ(vote(std::vector<BallotRecord>{kIdle, kIdle}, {}, state), StepKind::kIdle);
}

TEST(Voting, FewDecodingSequencesDoNotKeepAPromptWaiting) {
  EXPECT_EQ(first_prefill({{true, true, 2}, kIdle}, {.low_occupancy = 2}), 0);
  EXPECT_EQ(first_prefill({{true, true, 3}, kIdle}, {.low_occupancy = 2}), 100);
  EXPECT_EQ(first_prefill({{true, true, 2}, kDecodes}, {.low_occupancy = 2}), 100) << "the fullest rank counts";
}

TEST(Voting, APrefillBurstEndsWhileOthersDecode) {
  VotingState state;
  const std::vector<BallotRecord> ranks = {kBoth};
  int64_t in_a_row = 0;
  for (int step = 0; step < 500; ++step) {
    in_a_row = vote(ranks, {.max_prefill_steps = 3}, state) == StepKind::kPrefill ? in_a_row + 1 : 0;
    EXPECT_LE(in_a_row, 3);
  }
}

// Ranks that see the same records decide alike, and nobody waits longer than the rule says.
TEST(Voting, RanksAgreeAndWaitsAreBoundedUnderRandomLoad) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const VotingOptions options{.all_interval = 1 + static_cast<int64_t>(random() % 20),
                                .any_interval = 1 + static_cast<int64_t>(random() % 20),
                                .low_occupancy = static_cast<int32_t>(random() % 3),
                                .max_prefill_steps = 1 + static_cast<int64_t>(random() % 4)};
    const size_t num_ranks = 1 + random() % 5;
    std::vector<VotingState> states(num_ranks);
    int64_t waited = 0;
    for (int step = 0; step < 300; ++step) {
      std::vector<BallotRecord> ranks(num_ranks);
      bool any_waiting = false, all_waiting = true, any_decoding = false;
      for (BallotRecord& rank : ranks) {
        rank = {random() % 3 != 0, random() % 3 != 0, 0};
        rank.num_decoding = rank.has_decoding ? 1 + static_cast<int32_t>(random() % 5) : 0;
        any_waiting |= rank.has_waiting;
        all_waiting &= rank.has_waiting;
        any_decoding |= rank.has_decoding;
      }
      const StepKind kind = vote(ranks, options, states[0]);
      for (size_t r = 1; r < num_ranks; ++r) ASSERT_EQ(vote(ranks, options, states[r]), kind);
      ASSERT_EQ(kind == StepKind::kIdle, !any_waiting && !any_decoding);
      if (kind == StepKind::kPrefill) {
        ASSERT_TRUE(any_waiting);
      }
      if (!any_decoding && any_waiting) {
        ASSERT_EQ(kind, StepKind::kPrefill);
      }
      waited = any_waiting && kind == StepKind::kDecode ? waited + 1 : 0;
      ASSERT_LE(waited, options.any_interval);
      if (all_waiting) {
        ASSERT_LE(waited, std::max(options.all_interval, options.any_interval));
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer
