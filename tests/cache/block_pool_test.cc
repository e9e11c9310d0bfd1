#include "cache/block_pool.h"

#include <set>

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

void nothing(BlockId) {}

TEST(BlockPool, HandsOutEachBlockOnceAndThenNone) {
  BlockPool pool(5);
  std::set<BlockId> seen;
  for (int i = 0; i < 5; ++i) seen.insert(pool.acquire());
  EXPECT_EQ(seen, (std::set<BlockId>{0, 1, 2, 3, 4}));
  EXPECT_EQ(pool.acquire(), kNoBlock);
  EXPECT_EQ(pool.num_free(), 0);
}

TEST(BlockPool, ABlockIsFreeWhenItsLastHolderGoes) {
  BlockPool pool(1);
  const BlockId block = pool.acquire();
  pool.add_use(block);
  pool.add_unit(block, 7);
  pool.release_use(block, -1);
  pool.release_use(block, -1);
  EXPECT_EQ(pool.num_free(), 0);
  EXPECT_EQ(pool.num_held_by_units_only(), 1);
  EXPECT_EQ(pool.sole_unit(block), 7);
  pool.remove_unit(block, 7);
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_EQ(pool.num_held_by_units_only(), 0);
  EXPECT_TRUE(pool.is_consistent());
}

TEST(BlockPool, ABlockThatAStepMayNameIsFreeOnlyAfterThatStep) {
  BlockPool pool(1);
  const BlockId block = pool.acquire();
  pool.release_use(block, 4);
  pool.steps_done(3, nothing);
  EXPECT_EQ(pool.num_free(), 0);
  pool.steps_done(4, nothing);
  EXPECT_EQ(pool.num_free(), 1);
}

TEST(BlockPool, ABlockWaitsForTheLatestOfAllStepsThatMayNameIt) {
  BlockPool pool(1);
  const BlockId block = pool.acquire();
  pool.add_use(block);
  pool.add_unit(block, 0);
  pool.release_use(block, 6);
  pool.release_use(block, 5);
  pool.remove_unit(block, 0);  // evicted while step 6 may still read it
  pool.steps_done(5, nothing);
  EXPECT_EQ(pool.num_free(), 0);
  pool.steps_done(6, nothing);
  EXPECT_EQ(pool.num_free(), 1);
}

TEST(BlockPool, StepsThatAreDoneAlreadyHoldNothingBack) {
  BlockPool pool(1);
  pool.steps_done(9, nothing);
  pool.release_use(pool.acquire(), 9);
  EXPECT_EQ(pool.num_free(), 1);
}

TEST(BlockPool, TellsWhichBlocksHaveNoUseLeftAfterAStep) {
  BlockPool pool(3);
  const BlockId a = pool.acquire(), b = pool.acquire(), c = pool.acquire();
  pool.add_use(b);
  pool.release_use(a, 1);
  pool.release_use(b, 1);
  pool.release_use(c, 2);
  std::set<BlockId> told;
  pool.steps_done(1, [&](BlockId block) { told.insert(block); });
  EXPECT_EQ(told, std::set<BlockId>{a});
}

TEST(BlockPool, NamesTheSoleUnitOnlyWhileItIsAlone) {
  BlockPool pool(1);
  const BlockId block = pool.acquire();
  pool.add_unit(block, 3);
  EXPECT_EQ(pool.sole_unit(block), -1);  // there is a use as well
  pool.release_use(block, -1);
  EXPECT_EQ(pool.sole_unit(block), 3);
  pool.add_unit(block, 12);
  EXPECT_EQ(pool.sole_unit(block), -1);
  pool.remove_unit(block, 3);
  EXPECT_EQ(pool.sole_unit(block), 12);
}

TEST(BlockPool, TheGenerationGrowsWhenABlockBecomesFree) {
  BlockPool pool(1);
  const BlockId block = pool.acquire();
  const uint32_t before = pool.generation(block);
  pool.add_use(block);
  pool.release_use(block, -1);
  EXPECT_EQ(pool.generation(block), before);
  pool.release_use(block, -1);
  EXPECT_NE(pool.generation(block), before);
}

TEST(BlockPool, InDebugModeAFreedBlockIsHandedOutLast) {
  BlockPool pool(3, true);
  const BlockId block = pool.acquire();
  pool.release_use(block, -1);
  EXPECT_NE(pool.acquire(), block);
  EXPECT_NE(pool.acquire(), block);
  EXPECT_EQ(pool.acquire(), block);
}

TEST(BlockPoolDeathTest, DoubleReleaseEndsTheProcess) {
  BlockPool pool(2, true);
  const BlockId block = pool.acquire();
  pool.release_use(block, -1);
  EXPECT_DEATH(pool.release_use(block, -1), "released twice, or used after release");
}

TEST(BlockPoolDeathTest, DoubleReleaseWhileAStepIsInFlightEndsTheProcess) {
  BlockPool pool(2, true);
  const BlockId block = pool.acquire();
  pool.release_use(block, 5);
  EXPECT_DEATH(pool.release_use(block, 5), "released more often than it was taken");
}

TEST(BlockPoolDeathTest, UseAfterReleaseEndsTheProcess) {
  BlockPool pool(2, true);
  const BlockId block = pool.acquire();
  pool.release_use(block, -1);
  EXPECT_DEATH(pool.add_use(block), "used after release");
  EXPECT_DEATH(pool.add_unit(block, 0), "used after release");
}

}  // namespace
}  // namespace deepinfer
