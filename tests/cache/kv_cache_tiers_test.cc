#include <numeric>

#include <gtest/gtest.h>

#include "cache/kv_cache.h"

namespace deepinfer {
namespace {

using Tokens = std::vector<int32_t>;
using Direction = BlockTransfer::Direction;

Tokens text(int64_t length, int32_t first = 1000) {
  Tokens tokens(length);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

CacheLayout layout() { return {{{.name = "all", .tokens_per_block = 4, .block_bytes = 100}}}; }

class TiersTest : public ::testing::Test {
 protected:
  void use(int32_t device_blocks, int32_t host_blocks, bool disk = false) {
    cache_ = std::make_unique<KvCache>(layout(), KvCacheOptions{.num_blocks = {device_blocks},
                                                                .debug = true,
                                                                .num_host_blocks = {host_blocks},
                                                                .disk = disk,
                                                                .fingerprint = cache_fingerprint(layout(), "m")});
  }
  void leave_unit(const Tokens& tokens) {
    BlockTable table = cache_->make_table(64);
    ASSERT_TRUE(cache_->reserve(table, static_cast<int64_t>(tokens.size())));
    cache_->publish(table, tokens, 0);
    cache_->release(table, -1);
  }
  // Takes every device block and gives it back: all units leave the device.
  void push_out() {
    BlockTable table = cache_->make_table(400);
    ASSERT_TRUE(cache_->reserve(table, 4 * cache_->capacity(0)));
    cache_->release(table, -1);
  }
  std::vector<BlockTransfer> transfers(int64_t step) {
    std::vector<BlockTransfer> out;
    cache_->take_transfers(step, out);
    return out;
  }
  std::vector<DiskJob> jobs() {
    std::vector<DiskJob> out;
    cache_->take_disk_jobs(out);
    return out;
  }
  PrefixMatch match(const Tokens& tokens) { return cache_->match(tokens, static_cast<int64_t>(tokens.size()), 0); }
  // The unit leaves for host memory and from there for the disk.
  DiskJob push_to_disk(int64_t step) {
    push_out();
    transfers(step);
    cache_->steps_done(step);
    std::vector<DiskJob> saves = jobs();
    EXPECT_EQ(saves.size(), 1u);
    cache_->disk_job_done({.id = saves[0].id, .ok = true, .bytes = 1});
    return saves[0];
  }

  std::unique_ptr<KvCache> cache_;
};

TEST_F(TiersTest, AUnitThatLeavesTheDeviceIsSavedBeforeItsBlocksAreUsedAgain) {
  use(4, 10);
  leave_unit(text(7));
  push_out();
  const auto moved = transfers(0);
  ASSERT_EQ(moved.size(), 2u);
  EXPECT_EQ(moved[0].direction, Direction::kSave);
  EXPECT_NE(moved[0].host_block, moved[1].host_block);
  const PrefixMatch found = match(text(9));
  EXPECT_EQ(found.length, 0);
  EXPECT_EQ(found.stored_length, 7);
  EXPECT_EQ(found.stored_tier, Tier::kHost);
  EXPECT_EQ(cache_->counters().host_saved_bytes, 200);
}

TEST_F(TiersTest, ALoadFromHostMemoryIsReadyForTheStepBeingPlanned) {
  use(4, 10);
  leave_unit(text(7));
  push_out();
  const auto saved = transfers(0);
  BlockTable table = cache_->make_table(64);
  const int64_t load = cache_->begin_load(match(text(9)), table);
  ASSERT_GE(load, 0);
  EXPECT_EQ(table.groups[0].blocks.size(), 2u);
  EXPECT_EQ(cache_->load_state(load), LoadState::kReady);
  const auto loaded = transfers(1);
  ASSERT_EQ(loaded.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(loaded[i].direction, Direction::kLoad);
    EXPECT_EQ(loaded[i].host_block, saved[i].host_block);
    EXPECT_EQ(loaded[i].device_block, table.groups[0].blocks[i]);
  }
  EXPECT_EQ(match(text(9)).length, 7);  // it is on the device again, for others to adopt
  EXPECT_EQ(cache_->counters().host_hit_tokens, 7);
  const BlockTable* const tables[] = {&table};
  EXPECT_EQ(cache_->check(tables), "");
}

TEST_F(TiersTest, SavedTwiceAndLoadedInOnePlanTheOrderOfTheTransfersTells) {
  use(2, 10);
  leave_unit(text(8));
  leave_unit(text(8, 5000));  // pushes the first one out: saves
  BlockTable table = cache_->make_table(64);
  const int64_t load = cache_->begin_load(match(text(8)), table);  // pushes the second one out, into the same blocks
  ASSERT_GE(load, 0);
  const auto moved = transfers(0);
  ASSERT_EQ(moved.size(), 6u);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(moved[i].direction, i < 4 ? Direction::kSave : Direction::kLoad);
}

TEST_F(TiersTest, BlocksThatUnitsShareAreSavedOnce) {
  use(4, 10);
  BlockTable table = cache_->make_table(64);
  ASSERT_TRUE(cache_->reserve(table, 12));
  cache_->publish(table, text(8), 0);
  cache_->publish(table, text(12), 0);
  cache_->release(table, -1);
  push_out();
  EXPECT_EQ(transfers(0).size(), 3u);
  EXPECT_EQ(cache_->num_free_host(0), 7);
}

TEST_F(TiersTest, WhatTheDeviceStillHasIsNotLoadedAgain) {
  use(5, 10);
  leave_unit(text(16));
  push_out();
  transfers(0);
  leave_unit(text(8));  // computed again up to here
  BlockTable table = cache_->make_table(64);
  const PrefixMatch found = match(text(16));
  EXPECT_EQ(found.length, 8);
  EXPECT_EQ(found.stored_length, 16);
  ASSERT_GE(cache_->begin_load(found, table), 0);
  EXPECT_EQ(transfers(1).size(), 2u);
  EXPECT_EQ(cache_->num_free(0), 1);
}

TEST_F(TiersTest, ALoadWithoutRoomChangesNothing) {
  use(4, 10);
  leave_unit(text(16));
  push_out();
  transfers(0);
  BlockTable running = cache_->make_table(64), table = cache_->make_table(64);
  ASSERT_TRUE(cache_->reserve(running, 4));
  EXPECT_EQ(cache_->begin_load(match(text(16)), table), -1);
  EXPECT_TRUE(table.groups[0].blocks.empty());
  EXPECT_EQ(match(text(16)).stored_length, 16);
  const BlockTable* const tables[] = {&running};
  EXPECT_EQ(cache_->check(tables), "");
}

TEST_F(TiersTest, HostMemoryForgetsTheUnitThatWasUsedLongestAgo) {
  use(1, 2);
  for (int i = 1; i <= 3; ++i) {
    leave_unit(text(4, 1000 * i));
    push_out();
    transfers(i);
    cache_->steps_done(i);
  }
  EXPECT_EQ(match(text(4, 1000)).stored_length, 0);
  EXPECT_EQ(match(text(4, 2000)).stored_length, 4);
  EXPECT_EQ(match(text(4, 3000)).stored_length, 4);
}

TEST_F(TiersTest, AUnitThatHostMemoryHasNoRoomForIsForgotten) {
  use(4, 1);
  leave_unit(text(8));
  push_out();
  EXPECT_TRUE(transfers(0).empty());
  EXPECT_EQ(match(text(8)).stored_length, 0);
  EXPECT_EQ(cache_->counters().host_saves_skipped, 1);
  EXPECT_EQ(cache_->check({}), "");
}

TEST_F(TiersTest, AUnitGoesToDiskOnlyAfterTheStepThatBroughtItToHostMemory) {
  use(4, 10, true);
  leave_unit(text(8));
  push_out();
  transfers(5);
  cache_->steps_done(4);
  EXPECT_TRUE(jobs().empty());
  cache_->steps_done(5);
  const auto saves = jobs();
  ASSERT_EQ(saves.size(), 1u);
  EXPECT_EQ(saves[0].kind, DiskJob::Kind::kSave);
  EXPECT_EQ(saves[0].tokens, text(8));
  EXPECT_EQ(saves[0].blocks.size(), 2u);
  cache_->disk_job_done({.id = saves[0].id, .ok = true, .bytes = 200});
  EXPECT_EQ(cache_->counters().disk_saved_bytes, 200);
}

TEST_F(TiersTest, HostBlocksStayWhileTheDiskReadsThem) {
  use(1, 1, true);
  leave_unit(text(4));
  push_out();
  transfers(0);
  cache_->steps_done(0);
  const auto saves = jobs();
  ASSERT_EQ(saves.size(), 1u);
  leave_unit(text(4, 5000));
  push_out();  // the only host block is being read
  EXPECT_TRUE(transfers(1).empty());
  cache_->disk_job_done({.id = saves[0].id, .ok = true});
  leave_unit(text(4, 5000));
  push_out();
  EXPECT_EQ(transfers(2).size(), 1u);
  EXPECT_EQ(match(text(4)).stored_tier, Tier::kDisk);
}

TEST_F(TiersTest, ALoadFromDiskIsPendingUntilItsJobIsDone) {
  use(4, 2, true);
  leave_unit(text(7));
  const DiskJob saved = push_to_disk(0);
  leave_unit(text(8, 5000));
  push_to_disk(1);  // takes both host blocks
  const PrefixMatch found = match(text(9));
  EXPECT_EQ(found.stored_length, 7);
  EXPECT_EQ(found.stored_tier, Tier::kDisk);
  BlockTable table = cache_->make_table(64), other = cache_->make_table(64);
  const int64_t load = cache_->begin_load(found, table);
  ASSERT_GE(load, 0);
  const auto loads = jobs();
  ASSERT_EQ(loads.size(), 1u);
  EXPECT_EQ(loads[0].kind, DiskJob::Kind::kLoad);
  EXPECT_EQ(loads[0].unit, saved.unit);
  EXPECT_EQ(loads[0].tokens, text(7));
  EXPECT_EQ(cache_->load_state(load), LoadState::kPending);
  // A second sequence that wants the same joins in: it shares the full block and gets its own of the other.
  EXPECT_EQ(match(text(9)).length, 0);
  EXPECT_EQ(cache_->begin_load(match(text(9)), other), load);
  EXPECT_EQ(other.groups[0].blocks[0], table.groups[0].blocks[0]);
  EXPECT_NE(other.groups[0].blocks[1], table.groups[0].blocks[1]);
  EXPECT_TRUE(jobs().empty());
  EXPECT_TRUE(transfers(2).empty());
  cache_->disk_job_done({.id = loads[0].id, .ok = true, .bytes = 200});
  EXPECT_EQ(cache_->load_state(load), LoadState::kReady);
  EXPECT_EQ(cache_->load_state(load), LoadState::kReady);
  EXPECT_EQ(transfers(3).size(), 3u);
  EXPECT_EQ(match(text(9)).length, 7);
  EXPECT_EQ(cache_->counters().disk_hit_tokens, 14);
  const BlockTable* const tables[] = {&table, &other};
  EXPECT_EQ(cache_->check(tables), "");
}

TEST_F(TiersTest, AFailedLoadLeavesNothingBehindAndTheUnitIsForgottenIfItIsGone) {
  use(4, 2, true);
  cache_->add_stored_unit(text(7), 0);
  BlockTable table = cache_->make_table(64);
  const int64_t load = cache_->begin_load(match(text(9)), table);
  ASSERT_GE(load, 0);
  const auto loads = jobs();
  cache_->disk_job_done({.id = loads[0].id, .ok = false, .gone = {loads[0].unit}});
  EXPECT_EQ(cache_->load_state(load), LoadState::kFailed);
  cache_->release(table, -1);
  EXPECT_EQ(match(text(9)).stored_length, 0);
  EXPECT_EQ(cache_->num_free(0), 4);
  EXPECT_EQ(cache_->num_free_host(0), 2);
  EXPECT_EQ(cache_->counters().disk_load_failures, 1);
  EXPECT_EQ(cache_->counters().units, 0);
  EXPECT_EQ(cache_->check({}), "");
}

TEST_F(TiersTest, AJobThatWasRefusedDoesNotMakeTheCacheForgetTheUnit) {
  use(4, 2, true);
  cache_->add_stored_unit(text(7), 0);
  BlockTable table = cache_->make_table(64);
  const int64_t load = cache_->begin_load(match(text(9)), table);
  cache_->disk_job_done({.id = jobs()[0].id, .ok = false});
  EXPECT_EQ(cache_->load_state(load), LoadState::kFailed);
  cache_->release(table, -1);
  EXPECT_EQ(match(text(9)).stored_length, 7);
}

TEST_F(TiersTest, BlocksOfAnAbandonedLoadAreNotHandedOutBeforeItIsOver) {
  use(2, 2, true);
  cache_->add_stored_unit(text(8), 0);
  BlockTable table = cache_->make_table(64);
  const int64_t load = cache_->begin_load(match(text(8)), table);
  cache_->abandon_load(load);
  cache_->release(table, -1);
  EXPECT_EQ(cache_->num_free(0), 0);
  EXPECT_FALSE(cache_->reserve(table, 4));
  cache_->disk_job_done({.id = jobs()[0].id, .ok = true});
  EXPECT_EQ(match(text(8)).length, 8);
  EXPECT_TRUE(cache_->reserve(table, 4));
  const BlockTable* const tables[] = {&table};
  EXPECT_EQ(cache_->check(tables), "");
}

TEST_F(TiersTest, NorThoseOfASequenceThatJoinedALoadAndLeft) {
  use(3, 2, true);
  cache_->add_stored_unit(text(7), 0);
  BlockTable table = cache_->make_table(64), other = cache_->make_table(64);
  const int64_t load = cache_->begin_load(match(text(7)), table);
  ASSERT_EQ(cache_->begin_load(match(text(7)), other), load);
  cache_->abandon_load(load);
  cache_->release(other, -1);
  EXPECT_EQ(cache_->num_free(0), 0);
  cache_->disk_job_done({.id = jobs()[0].id, .ok = true});
  EXPECT_EQ(cache_->num_free(0), 1);
  EXPECT_EQ(cache_->load_state(load), LoadState::kReady);
  const BlockTable* const tables[] = {&table};
  EXPECT_EQ(cache_->check(tables), "");
}

TEST_F(TiersTest, PublishingAUnitThatOnlyTheDiskHasPutsItOnTheDevice) {
  use(4, 2, true);
  cache_->add_stored_unit(text(8), 0);
  leave_unit(text(8));
  EXPECT_EQ(match(text(8)).length, 8);
  push_out();  // and from there to host memory, but not to disk again
  transfers(0);
  cache_->steps_done(0);
  EXPECT_EQ(match(text(8)).stored_tier, Tier::kHost);
  EXPECT_TRUE(jobs().empty());
}

TEST_F(TiersTest, BeforeTheEndEveryUnitCanBeSaved) {
  use(20, 3, true);
  for (int i = 1; i <= 5; ++i) leave_unit(text(8, 1000 * i));
  std::vector<Tokens> saved;
  int64_t step = 0;
  for (int64_t waiting = 1; waiting > 0 && step < 10; ++step) {
    waiting = cache_->save_all_units();
    transfers(step);
    cache_->steps_done(step);
    for (const DiskJob& job : jobs()) {
      saved.push_back(job.tokens);
      cache_->disk_job_done({.id = job.id, .ok = true});
    }
  }
  EXPECT_EQ(saved.size(), 5u);
  EXPECT_EQ(cache_->check({}), "");
}

TEST_F(TiersTest, TheSourceOfACopyStaysUntilThePlanIsComplete) {
  use(3, 10);
  leave_unit(text(6));  // two blocks
  BlockTable table = cache_->make_table(64);
  std::vector<BlockCopy> copies;
  ASSERT_TRUE(cache_->adopt(match(text(7)), table, copies));
  ASSERT_EQ(copies.size(), 1u);
  // Though its unit could be evicted.
  const int32_t one[] = {1};
  EXPECT_FALSE(cache_->could_reserve(one));
  transfers(0);
  EXPECT_TRUE(cache_->could_reserve(one));
}

}  // namespace
}  // namespace deepinfer
