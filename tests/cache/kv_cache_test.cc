#include "cache/kv_cache.h"

#include <cstdlib>
#include <new>
#include <numeric>

#include <gtest/gtest.h>

namespace {

int64_t num_allocations = 0;

}  // namespace

// Counted, for the promise that decoding allocates nothing. The compiler, inlining one of the pair, takes it for a
// mismatch.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
void* operator new(size_t size) {
  ++num_allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace deepinfer {
namespace {

using Tokens = std::vector<int32_t>;

// 1000, 1001, ...
Tokens text(int64_t length, int32_t first = 1000) {
  Tokens tokens(length);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// One group that keeps everything, one that keeps 6 rows.
CacheLayout layout() {
  return {{{.name = "all", .tokens_per_block = 4, .block_bytes = 1},
           {.name = "window", .tokens_per_block = 2, .block_bytes = 1, .retention = 6}}};
}

class KvCacheTest : public ::testing::Test {
 protected:
  void use(int32_t all_blocks, int32_t window_blocks, int64_t max_units = 100, bool prefix_caching = true) {
    cache_ = std::make_unique<KvCache>(layout(), KvCacheOptions{.num_blocks = {all_blocks, window_blocks},
                                                                .prefix_caching = prefix_caching,
                                                                .max_units = max_units,
                                                                .debug = true});
  }
  BlockTable computed(int64_t length) {
    BlockTable table = cache_->make_table(64);
    EXPECT_TRUE(cache_->reserve(table, length));
    return table;
  }
  // A unit of these tokens whose sequence is gone.
  void leave_unit(const Tokens& tokens, uint64_t salt = 0) {
    BlockTable table = computed(static_cast<int64_t>(tokens.size()));
    cache_->publish(table, tokens, salt);
    cache_->release(table, -1);
  }
  int64_t matched(const Tokens& tokens, uint64_t salt = 0) {
    return cache_->match(tokens, static_cast<int64_t>(tokens.size()), salt).length;
  }
  std::string check(std::vector<const BlockTable*> tables = {}) { return cache_->check(tables); }

  std::unique_ptr<KvCache> cache_;
};

TEST_F(KvCacheTest, ReserveAddsTheBlocksOfEachGroupThatCoverTheRows) {
  use(10, 10);
  BlockTable table = computed(5);
  EXPECT_EQ(table.groups[0].blocks.size(), 2u);
  EXPECT_EQ(table.groups[1].blocks.size(), 3u);
  EXPECT_TRUE(cache_->reserve(table, 6));  // fits
  EXPECT_TRUE(cache_->reserve(table, 3));  // never takes back
  EXPECT_EQ(cache_->num_free(0), 8);
  EXPECT_EQ(cache_->num_free(1), 7);
  EXPECT_EQ(check({&table}), "");
}

TEST_F(KvCacheTest, AReserveThatOneGroupCannotGiveChangesNothing) {
  use(10, 3);
  BlockTable table = computed(4);
  EXPECT_FALSE(cache_->reserve(table, 8));
  EXPECT_EQ(table.groups[0].blocks.size(), 1u);
  EXPECT_EQ(table.groups[1].blocks.size(), 2u);
  EXPECT_EQ(check({&table}), "");
}

TEST_F(KvCacheTest, AReserveInVainEvictsNothing) {
  use(4, 10);
  leave_unit(text(8));
  BlockTable table = cache_->make_table(64);
  EXPECT_FALSE(cache_->reserve(table, 20));
  EXPECT_EQ(matched(text(8)), 8);
}

TEST_F(KvCacheTest, DropsTheBlocksThatTheWindowHasLeft) {
  use(10, 10);
  BlockTable table = computed(13);
  cache_->drop_unneeded(table, 13, -1);  // rows [7, 13) stay: window blocks from 3
  EXPECT_EQ(table.groups[0].first, 0);
  EXPECT_EQ(table.groups[1].first, 3);
  EXPECT_EQ(table.groups[1].blocks[2], kNoBlock);
  EXPECT_NE(table.groups[1].blocks[3], kNoBlock);
  EXPECT_EQ(cache_->num_free(1), 10 - 4);
  EXPECT_EQ(check({&table}), "");
}

TEST_F(KvCacheTest, DroppedBlocksWaitForTheStepsThatNameThem) {
  use(10, 10);
  BlockTable table = computed(13);
  cache_->drop_unneeded(table, 13, 2);
  EXPECT_EQ(cache_->num_free(1), 10 - 7);
  EXPECT_EQ(check({&table}), "");
  cache_->steps_done(2);
  EXPECT_EQ(cache_->num_free(1), 10 - 4);
}

TEST_F(KvCacheTest, AUnitMatchesWholeOrNotAtAll) {
  use(10, 10);
  leave_unit(text(8));
  EXPECT_EQ(matched(text(9)), 8);
  EXPECT_EQ(matched(text(8)), 8);
  EXPECT_EQ(matched(text(7)), 0);
  EXPECT_EQ(cache_->match(text(9), 7, 0).length, 0);
}

TEST_F(KvCacheTest, TellsWhereAPromptPartsFromWhatWasSeen) {
  use(10, 10);
  leave_unit(joined(text(6), text(3, 5000)));
  const Tokens other = joined(text(6), text(3, 7000));
  PrefixMatch match = cache_->match(other, 8, 0);
  EXPECT_EQ(match.length, 0);
  EXPECT_EQ(match.branch_length, 6);
  cache_->drop_all_units();
  EXPECT_EQ(cache_->match(other, 8, 0).branch_length, 6);
}

TEST_F(KvCacheTest, APromptThatIsStillBeingComputedCountsAsSeenOnceItIsNamed) {
  use(10, 10);
  cache_->see(joined(text(6), text(3, 5000)), 0);
  const PrefixMatch match = cache_->match(joined(text(6), text(3, 7000)), 8, 0);
  EXPECT_EQ(match.length, 0);
  EXPECT_EQ(match.branch_length, 6);
}

TEST_F(KvCacheTest, SaltsDoNotSeeEachOther) {
  use(10, 10);
  leave_unit(text(8), 1);
  EXPECT_EQ(matched(text(8), 2), 0);
  EXPECT_EQ(cache_->match(text(8), 8, 2).branch_length, 0);
  EXPECT_EQ(matched(text(8), 1), 8);
}

TEST_F(KvCacheTest, AnAdoptedUnitSharesFullBlocksAndCopiesThePartlyFilledOnes) {
  use(10, 20);
  BlockTable source = computed(11);
  cache_->publish(source, text(11), 0);
  BlockTable table = cache_->make_table(64);
  std::vector<BlockCopy> copies;
  ASSERT_TRUE(cache_->adopt(cache_->match(text(12), 11, 0), table, copies));
  EXPECT_EQ(table.groups[0].blocks[0], source.groups[0].blocks[0]);
  EXPECT_EQ(table.groups[0].blocks[1], source.groups[0].blocks[1]);
  EXPECT_NE(table.groups[0].blocks[2], source.groups[0].blocks[2]);
  EXPECT_EQ(table.groups[1].first, 2);  // rows [5, 11)
  EXPECT_EQ(table.groups[1].blocks.size(), 6u);
  ASSERT_EQ(copies.size(), 2u);
  EXPECT_EQ(copies[0].group, 0);
  EXPECT_EQ(copies[0].from, source.groups[0].blocks[2]);
  EXPECT_EQ(copies[0].to, table.groups[0].blocks[2]);
  EXPECT_EQ(copies[1].from, source.groups[1].blocks[5]);
  EXPECT_EQ(check({&source, &table}), "");
}

TEST_F(KvCacheTest, AUnitThatEndsWithItsBlocksIsAdoptedWithoutACopy) {
  use(2, 4);
  leave_unit(text(8));  // the window group holds rows [2, 8)
  EXPECT_EQ(cache_->num_free(0), 0);
  EXPECT_EQ(cache_->num_free(1), 1);
  BlockTable table = cache_->make_table(64);
  std::vector<BlockCopy> copies;
  EXPECT_TRUE(cache_->adopt(cache_->match(text(9), 8, 0), table, copies));
  EXPECT_TRUE(copies.empty());
  EXPECT_EQ(check({&table}), "");
}

TEST_F(KvCacheTest, AdoptingEvictsOtherUnitsForItsCopiesButNeverItsOwn) {
  use(4, 9);
  leave_unit(text(5));        // two blocks, adopted below although it is the older one
  leave_unit(text(5, 5000));  // two blocks: evicted for the copy
  BlockTable table = cache_->make_table(64);
  std::vector<BlockCopy> copies;
  ASSERT_TRUE(cache_->adopt(cache_->match(text(6), 5, 0), table, copies));
  EXPECT_EQ(matched(text(5)), 5);
  EXPECT_EQ(matched(text(5, 5000)), 0);
  EXPECT_EQ(check({&table}), "");
}

TEST_F(KvCacheTest, AnAdoptionWithoutRoomForItsCopiesChangesNothing) {
  use(2, 9);
  leave_unit(text(5));
  BlockTable table = cache_->make_table(64);
  std::vector<BlockCopy> copies;
  EXPECT_FALSE(cache_->adopt(cache_->match(text(6), 5, 0), table, copies));
  EXPECT_TRUE(copies.empty());
  EXPECT_TRUE(table.groups[0].blocks.empty());
  EXPECT_EQ(matched(text(5)), 5);
  EXPECT_EQ(check({&table}), "");
}

TEST_F(KvCacheTest, EvictsTheUnitThatWasUsedLongestAgo) {
  use(3, 20);
  leave_unit(text(4));
  leave_unit(text(4, 5000));
  leave_unit(text(4, 7000));
  BlockTable table = cache_->make_table(64);
  std::vector<BlockCopy> copies;
  ASSERT_TRUE(cache_->adopt(cache_->match(text(5), 4, 0), table, copies));
  cache_->release(table, -1);
  ASSERT_TRUE(cache_->reserve(table, 4));
  EXPECT_EQ(matched(text(4)), 4);
  EXPECT_EQ(matched(text(4, 5000)), 0);
  EXPECT_EQ(matched(text(4, 7000)), 4);
}

TEST_F(KvCacheTest, EvictsNoUnitThatFreesNothingWhereBlocksAreShort) {
  use(3, 20);
  // The shorter unit is older, but all its blocks of group 0 belong to the longer one as well.
  BlockTable table = computed(8);
  cache_->publish(table, text(4), 0);
  cache_->publish(table, text(8), 0);
  cache_->release(table, -1);
  ASSERT_TRUE(cache_->reserve(table, 8));
  EXPECT_EQ(matched(text(8)), 4);  // the longer one went, and with it one block
  EXPECT_EQ(cache_->counters().evicted, 1);
  EXPECT_EQ(check({&table}), "");
}

TEST_F(KvCacheTest, BlocksOfARunningSequenceAreNotCountedAsEvictable) {
  use(2, 20);
  BlockTable running = computed(8);
  cache_->publish(running, text(8), 0);
  const int32_t one[] = {1, 0};
  EXPECT_FALSE(cache_->could_reserve(one));
  cache_->release(running, 3);
  EXPECT_FALSE(cache_->could_reserve(one));  // step 3 may still read them
  cache_->steps_done(3);
  EXPECT_TRUE(cache_->could_reserve(one));
}

TEST_F(KvCacheTest, PublishingTheSameTokensAgainIsAUseOfTheUnit) {
  use(2, 20);
  leave_unit(text(4));
  leave_unit(text(4, 5000));
  EXPECT_EQ(cache_->counters().published, 2);
  cache_->drop_all_units();
  leave_unit(text(4));
  leave_unit(text(4, 5000));
  BlockTable table = cache_->make_table(64);
  std::vector<BlockCopy> copies;
  ASSERT_TRUE(cache_->adopt(cache_->match(text(4), 4, 0), table, copies));
  cache_->publish(table, text(4), 0);
  EXPECT_EQ(cache_->counters().published, 4);
  EXPECT_EQ(check({&table}), "");
}

TEST_F(KvCacheTest, HoldsNoMoreUnitsThanItMay) {
  use(50, 50, 3);
  for (int i = 0; i < 5; ++i) leave_unit(text(4, 1000 * (i + 1)));
  EXPECT_EQ(cache_->counters().units, 3);
  EXPECT_EQ(matched(text(4, 2000)), 0);
  EXPECT_EQ(matched(text(4, 3000)), 4);
  EXPECT_EQ(check(), "");
}

TEST_F(KvCacheTest, WithoutPrefixCachingNothingIsKept) {
  use(10, 10, 100, false);
  leave_unit(text(8));
  EXPECT_EQ(matched(text(8)), 0);
  EXPECT_EQ(cache_->num_free(0), 10);
}

TEST_F(KvCacheTest, DroppingAllUnitsFreesEverythingThatNobodyUses) {
  use(10, 20);
  leave_unit(text(8));
  BlockTable table = computed(5);
  cache_->publish(table, text(5, 5000), 0);
  cache_->drop_all_units();
  EXPECT_EQ(cache_->counters().units, 0);
  EXPECT_EQ(cache_->num_free(0), 8);
  EXPECT_EQ(check({&table}), "");
}

TEST_F(KvCacheTest, ThePublishedBlockMayGoOnBeingFilledByItsSequence) {
  use(10, 10);
  BlockTable table = computed(5);
  cache_->publish(table, text(5), 0);
  const BlockId partial = table.groups[0].blocks[1];
  ASSERT_TRUE(cache_->reserve(table, 8));
  EXPECT_EQ(table.groups[0].blocks[1], partial);
  cache_->publish(table, text(8), 0);
  EXPECT_EQ(check({&table}), "");
}

TEST_F(KvCacheTest, DecodingAllocatesNothing) {
  use(60, 60);
  for (int i = 0; i < 10; ++i) leave_unit(text(16, 1000 * (i + 1)));  // to be evicted on the way
  BlockTable table = cache_->make_table(200);
  const int64_t before = num_allocations;
  for (int64_t length = 1; length <= 200; ++length) {
    ASSERT_TRUE(cache_->reserve(table, length));
    cache_->drop_unneeded(table, length, length);
    cache_->steps_done(length - 1);
  }
  EXPECT_EQ(num_allocations, before);
  EXPECT_LT(cache_->counters().units, 10);
}

using KvCacheDeathTest = KvCacheTest;

TEST_F(KvCacheDeathTest, ReleasingTheCopyOfATableEndsTheProcess) {
  use(10, 10);
  BlockTable table = computed(4);
  BlockTable copy = table;
  cache_->release(table, -1);
  EXPECT_DEATH(cache_->release(copy, -1), "released twice");
}

TEST_F(KvCacheDeathTest, AMatchDoesNotOutliveItsUnit) {
  use(10, 10);
  leave_unit(text(4));
  const PrefixMatch match = cache_->match(text(4), 4, 0);
  cache_->drop_all_units();
  leave_unit(text(4));
  BlockTable table = cache_->make_table(64);
  std::vector<BlockCopy> copies;
  EXPECT_DEATH(cache_->adopt(match, table, copies), "after the cache had changed");
}

TEST_F(KvCacheDeathTest, AUnitNeedsTheRowsItsWindowKeeps) {
  use(10, 10);
  BlockTable table = computed(13);
  cache_->drop_unneeded(table, 13, -1);
  EXPECT_DEATH(cache_->publish(table, text(8), 0), "needs blocks");
}

}  // namespace
}  // namespace deepinfer
