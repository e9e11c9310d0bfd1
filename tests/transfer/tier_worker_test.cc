#include "transfer/tier_worker.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "cache/kv_cache.h"
#include "checkpoint/temp_folder.h"
#include "transfer/store_rig.h"

namespace deepinfer {
namespace {

using Tokens = std::vector<int32_t>;

CacheLayout layout() {
  return {{{.name = "all", .tokens_per_block = 4, .block_bytes = test_block_bytes(0)},
           {.name = "window", .tokens_per_block = 2, .block_bytes = test_block_bytes(1), .retention = 6}}};
}

class TierWorkerTest : public ::testing::Test {
 protected:
  DiskStoreOptions options() const {
    return {.directory = folder_.path(), .fingerprint = cache_fingerprint(layout(), "test"), .segment_bytes = 200000};
  }
  void start(DiskStoreOptions store_options, int64_t max_waiting_jobs = 256) {
    host_ = HostBlocks::allocate(layout(), {64, 64}).value();
    worker_ = std::make_unique<TierWorker>(DiskStore::open(store_options), *host_, max_waiting_jobs);
  }
  // A save job for the unit, whose bytes are put into host blocks from `first` on.
  DiskJob save_job(int64_t id, const TestUnit& unit, BlockId first) {
    DiskJob job{.id = id, .kind = DiskJob::Kind::kSave, .unit = unit.key, .salt = unit.record.salt};
    job.tokens = unit.record.tokens;
    for (const UnitRecord::Block& block : unit.record.blocks) {
      const auto bytes = test_bytes(block.key, block.group);
      const auto group = static_cast<int32_t>(block.group);
      std::copy(bytes.begin(), bytes.end(), host_->block(group, first).begin());
      job.blocks.push_back({group, first++, block.key});
    }
    return job;
  }
  static DiskJob load_job(int64_t id, DiskJob saved) {
    saved.id = id;
    saved.kind = DiskJob::Kind::kLoad;
    return saved;
  }
  std::vector<DiskJobResult> results_after_drain() {
    worker_->drain();
    std::vector<DiskJobResult> results;
    worker_->poll(results);
    return results;
  }

  TempFolder folder_;
  std::unique_ptr<HostBlocks> host_;
  std::unique_ptr<TierWorker> worker_;
};

TEST_F(TierWorkerTest, WhatWasSavedIsLoadedByteForByte) {
  start(options());
  const TestUnit unit = test_unit(1);
  DiskJob job = save_job(1, unit, 0);
  worker_->submit(job);
  auto results = results_after_drain();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_TRUE(results[0].ok);
  EXPECT_EQ(results[0].bytes, 4 * test_block_bytes(0) + test_block_bytes(1));
  for (DiskJob::Block& block : job.blocks) block.host_block += 20;
  worker_->submit(load_job(2, job));
  results = results_after_drain();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].id, 2);
  EXPECT_TRUE(results[0].ok);
  for (const DiskJob::Block& block : job.blocks) {
    const auto content = host_->block(block.group, block.host_block);
    const auto expected = test_bytes(block.key, static_cast<uint32_t>(block.group));
    EXPECT_TRUE(std::equal(content.begin(), content.end(), expected.begin()));
  }
}

TEST_F(TierWorkerTest, AUnitThatIsNotThereIsReportedGone) {
  start(options());
  worker_->submit(load_job(5, save_job(1, test_unit(3), 0)));
  const auto results = results_after_drain();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_FALSE(results[0].ok);
  EXPECT_EQ(results[0].gone, std::vector{test_unit(3).key});
}

TEST_F(TierWorkerTest, TokensThatDifferFromTheSavedOnesGetNothing) {
  start(options());
  const DiskJob job = save_job(1, test_unit(1), 0);
  worker_->submit(job);
  DiskJob other = load_job(2, job);
  ++other.tokens[0];
  worker_->drain();
  worker_->submit(other);
  const auto results = results_after_drain();
  ASSERT_EQ(results.size(), 2u);
  EXPECT_FALSE(results[1].ok);
}

TEST_F(TierWorkerTest, TooManyJobsAreRefusedAndLoadsGoBeforeSaves) {
  std::atomic<bool> may_write = false, is_writing = false;
  DiskStoreOptions slow = options();
  slow.write = [&](int file, const iovec* parts, int num_parts, int64_t offset) {
    is_writing = true;
    while (!may_write) ::usleep(100);
    return ::pwritev(file, parts, num_parts, offset);
  };
  start(slow, 3);
  worker_->submit(save_job(1, test_unit(1), 0));
  std::vector<DiskJobResult> results;
  // Jobs 2, 3, 4 wait behind the first, once the worker has taken that; then the queue is full.
  while (!is_writing) ::usleep(100);
  worker_->submit(save_job(2, test_unit(2), 10));
  worker_->submit(load_job(3, save_job(3, test_unit(9), 30)));
  worker_->submit(save_job(4, test_unit(4), 20));
  worker_->submit(save_job(5, test_unit(5), 40));
  worker_->poll(results);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].id, 5);
  EXPECT_FALSE(results[0].ok);
  EXPECT_TRUE(results[0].gone.empty());
  may_write = true;
  const auto rest = results_after_drain();
  ASSERT_EQ(rest.size(), 4u);
  EXPECT_EQ(rest[0].id, 1);
  EXPECT_EQ(rest[1].id, 3);
  EXPECT_EQ(rest[2].id, 2);
  EXPECT_EQ(rest[3].id, 4);
}

TEST_F(TierWorkerTest, EndingTheWorkerFinishesWhatWaits) {
  start(options());
  for (int i = 0; i < 8; ++i) worker_->submit(save_job(i, test_unit(i), i * 8));
  worker_.reset();
  const auto store = DiskStore::open(options());
  for (uint64_t i = 0; i < 8; ++i) EXPECT_EQ(get(*store, test_unit(i)), Got::kRight);
}

// The whole of it: a cache on a device of a few blocks, host memory of a few more, a disk; sequences that come and go,
// and a restart. The bytes of a block follow from the tokens up to each of its rows.
class Machine {
 public:
  static constexpr int32_t kDeviceBlocks = 16;

  Machine(const std::string& folder, bool is_first) {
    fingerprint_ = cache_fingerprint(layout(), "test");
    host_ = HostBlocks::allocate(layout(), {24, 40}).value();
    device_ = HostBlocks::allocate(layout(), {kDeviceBlocks, 2 * kDeviceBlocks}).value();
    cache_ = std::make_unique<KvCache>(layout(), KvCacheOptions{.num_blocks = {kDeviceBlocks, 2 * kDeviceBlocks},
                                                                .debug = true,
                                                                .num_host_blocks = {24, 40},
                                                                .disk = true,
                                                                .fingerprint = fingerprint_});
    auto store = DiskStore::open({.directory = folder, .fingerprint = fingerprint_, .segment_bytes = 300000});
    for (const UnitRecord& unit : store->take_units()) cache_->add_stored_unit(unit.tokens, unit.salt);
    EXPECT_EQ(cache_->counters().units == 0, is_first);
    worker_ = std::make_unique<TierWorker>(std::move(store), *host_);
  }

  // Runs a sequence of these tokens from the longest stored prefix on; every row read is compared. Returns the length
  // of what it did not have to compute.
  int64_t run(const Tokens& tokens) {
    BlockTable table = cache_->make_table(64);
    const PrefixMatch match = cache_->match(tokens, static_cast<int64_t>(tokens.size()) - 1, 0);
    std::vector<BlockCopy> copies;
    int64_t length = 0;
    if (match.stored_length > 0) {
      const int64_t load = cache_->begin_load(match, table);
      LoadState state = LoadState::kFailed;
      if (load >= 0)
        while ((state = cache_->load_state(load)) == LoadState::kPending) step({});
      if (state == LoadState::kReady) length = match.stored_length;
      if (state == LoadState::kFailed) cache_->release(table, step_);
    } else if (match.length > 0 && cache_->adopt(match, table, copies)) {
      length = match.length;
    }
    step(copies);
    compare(table, tokens, length);
    if (!cache_->reserve(table, static_cast<int64_t>(tokens.size()))) {
      ADD_FAILURE() << "no room for " << tokens.size() << " tokens";
      return 0;
    }
    step({});  // what leaves these blocks is saved before they are written
    write(table, tokens, length);
    compare(table, tokens, static_cast<int64_t>(tokens.size()));
    cache_->publish(table, tokens, 0);
    cache_->release(table, step_);
    step({});
    worker_->drain();  // computing takes longer than saving
    step({});
    EXPECT_EQ(cache_->check({}), "");
    return length;
  }

  void shut_down() {
    int64_t before = -1;
    for (int64_t waiting = cache_->save_all_units(); waiting != before; waiting = cache_->save_all_units()) {
      before = waiting;
      step({});
      worker_->drain();
      step({});
    }
    worker_->drain();
    step({});
  }
  const KvCacheCounters& counters() const { return cache_->counters(); }

 private:
  void step(const std::vector<BlockCopy>& copies) {
    std::vector<BlockTransfer> transfers;
    cache_->take_transfers(step_, transfers);
    for (const BlockTransfer& t : transfers) {
      const auto on_device = device_->block(t.group, t.device_block);
      const auto in_host = host_->block(t.group, t.host_block);
      const bool saves = t.direction == BlockTransfer::Direction::kSave;
      std::copy_n((saves ? on_device : in_host).begin(), on_device.size(), (saves ? in_host : on_device).begin());
    }
    for (const BlockCopy& copy : copies)
      std::ranges::copy(device_->block(copy.group, copy.from), device_->block(copy.group, copy.to).begin());
    cache_->steps_done(step_++);
    std::vector<DiskJob> jobs;
    cache_->take_disk_jobs(jobs);
    for (DiskJob& job : jobs) worker_->submit(std::move(job));
    std::vector<DiskJobResult> results;
    worker_->poll(results);
    for (const DiskJobResult& result : results) cache_->disk_job_done(result);
  }

  std::span<std::byte> row(const BlockTable& table, int group, int64_t position) {
    const int64_t rows = layout().groups[group].tokens_per_block;
    const auto block = device_->block(group, table.groups[group].blocks[position / rows]);
    const size_t bytes = block.size() / rows;
    return block.subspan((position % rows) * bytes, bytes);
  }
  std::vector<std::byte> expected(const Tokens& tokens, int group, int64_t position, size_t size) {
    const UnitKeys keys = unit_keys(layout(), fingerprint_, 0, std::span(tokens).first(position + 1));
    std::vector<std::byte> bytes = test_bytes(keys.unit, static_cast<uint32_t>(group));
    bytes.resize(size);
    return bytes;
  }
  void write(const BlockTable& table, const Tokens& tokens, int64_t begin) {
    for (int g = 0; g < 2; ++g)
      for (auto p = begin; p < static_cast<int64_t>(tokens.size()); ++p) {
        const auto bytes = row(table, g, p);
        std::ranges::copy(expected(tokens, g, p, bytes.size()), bytes.begin());
      }
  }
  void compare(const BlockTable& table, const Tokens& tokens, int64_t length) {
    for (int g = 0; g < 2; ++g)
      for (int64_t p = g == 0 ? 0 : std::max<int64_t>(0, length - 6); p < length; ++p) {
        const auto bytes = row(table, g, p);
        ASSERT_TRUE(std::ranges::equal(bytes, expected(tokens, g, p, bytes.size()))) << "group " << g << " row " << p;
      }
  }

  ContentKey fingerprint_;
  std::unique_ptr<HostBlocks> host_, device_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<TierWorker> worker_;
  int64_t step_ = 0;
};

TEST(CacheWithTiers, SequencesGoOnFromDiskAfterARestartWithTheirOwnBytes) {
  const TempFolder folder;
  std::vector<Tokens> prompts;
  std::mt19937 random(3);
  for (int i = 0; i < 30; ++i) {
    Tokens tokens = i % 3 == 0 ? Tokens{} : prompts[i - 1];  // conversations of three turns
    const size_t turn = 5 + random() % 12;
    for (size_t t = 0; t < turn; ++t) tokens.push_back(static_cast<int32_t>(random() % 1000));
    prompts.push_back(tokens);
  }
  int64_t computed_before = 0;
  {
    Machine machine(folder.path(), true);
    for (const Tokens& prompt : prompts) computed_before += static_cast<int64_t>(prompt.size()) - machine.run(prompt);
    machine.shut_down();
    EXPECT_GT(machine.counters().host_saved_bytes, 0);
    EXPECT_GT(machine.counters().disk_saved_bytes, 0);
  }
  Machine machine(folder.path(), false);
  int64_t computed_after = 0;
  for (Tokens prompt : prompts) {
    prompt.push_back(7);
    computed_after += static_cast<int64_t>(prompt.size()) - machine.run(prompt);
  }
  EXPECT_GT(machine.counters().disk_hit_tokens, 300);
  EXPECT_LT(computed_after, computed_before / 4);
  EXPECT_EQ(machine.counters().disk_load_failures, 0);
}

}  // namespace
}  // namespace deepinfer
