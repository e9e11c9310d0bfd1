#include "cache/block_tier.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

// A unit of one group that holds these blocks.
UnitBlocks unit_of(std::vector<BlockId> blocks) { return {{{0, std::move(blocks)}}}; }

TEST(BlockTier, OnlyUnitsThatFreeABlockAreOfferedAndTheOldestFirst) {
  BlockTier tier({4}, true);
  tier.reserve_units(3);
  const BlockId a = tier.acquire(0), b = tier.acquire(0), c = tier.acquire(0);
  tier.enter(0, unit_of({a}), 1);  // shares its only block with unit 1: frees nothing
  tier.enter(1, unit_of({a, b}), 2);
  tier.enter(2, unit_of({c}), 3);
  EXPECT_EQ(tier.next_to_leave(0), -1);  // all are in use
  for (const BlockId block : {a, b, c}) tier.release_use(0, block, -1);
  EXPECT_EQ(tier.next_to_leave(0), 1);
  tier.touch(1, 4);
  EXPECT_EQ(tier.next_to_leave(0), 2);
  tier.leave(2);
  tier.leave(1);
  EXPECT_EQ(tier.next_to_leave(0), 0);  // now it is alone with block a
  tier.leave(0);
  EXPECT_EQ(tier.pool(0).num_free(), 4);
}

TEST(BlockTier, BlocksThatAStepMayReadCannotBeHadByEviction) {
  BlockTier tier({2}, true);
  tier.reserve_units(1);
  const BlockId a = tier.acquire(0);
  tier.enter(0, unit_of({a}), 1);
  tier.release_use(0, a, 7);
  const int32_t all[] = {2};
  EXPECT_FALSE(tier.could_free(all));
  EXPECT_EQ(tier.next_to_leave(0), -1);
  tier.steps_done(7);
  EXPECT_TRUE(tier.could_free(all));
  EXPECT_EQ(tier.next_to_leave(0), 0);
}

TEST(BlockTier, WhereUnitsShareEveryBlockTheOldestWithABlockOutOfUseGoesFirst) {
  BlockTier tier({2}, true);
  tier.reserve_units(3);
  const BlockId a = tier.acquire(0), b = tier.acquire(0);
  tier.enter(0, unit_of({b}), 1);  // in use
  tier.enter(1, unit_of({a}), 2);
  tier.enter(2, unit_of({a}), 3);
  tier.release_use(0, a, -1);
  EXPECT_EQ(tier.next_to_leave(0), 1);
  tier.leave(1);
  EXPECT_EQ(tier.next_to_leave(0), 2);
  tier.leave(2);
  EXPECT_EQ(tier.next_to_leave(0), -1);
  EXPECT_EQ(tier.pool(0).num_free(), 1);
}

TEST(BlockTierDeathTest, AUnitCannotHoldAFreeBlock) {
  BlockTier tier({2}, true);
  tier.reserve_units(1);
  const BlockId a = tier.acquire(0);
  tier.release_use(0, a, -1);
  EXPECT_DEATH(tier.enter(0, unit_of({a}), 1), "used after release");
}

}  // namespace
}  // namespace deepinfer
