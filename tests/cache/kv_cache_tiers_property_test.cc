// Random operations on a cache with tiers, against a device that lags behind the plans, a disk that answers late, loses
// things and fails, and restarts. Whatever happens, a sequence reads the rows it would have computed itself, and every
// block of both memories is accounted for.
#include <algorithm>
#include <deque>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "cache/kv_cache.h"
#include "cache/row_rig.h"

namespace deepinfer {
namespace {

using Tokens = std::vector<int32_t>;

struct Sequence {
  int64_t id = 0;
  uint64_t salt = 0;
  Tokens prompt;
  Tokens tokens;          // rows are there, or written by a step that is planned
  int64_t committed = 0;  // rows of steps that were collected
  int64_t may_return = 0;
  int64_t load = -1;  // waits for it; nothing else happens to the sequence
  int64_t load_length = 0;
  BlockTable table;
};

struct Rows {  // of a sequence, as a step sees it
  BlockTable table;
  Tokens tokens;
  uint64_t salt = 0;
  int64_t begin = 0;  // rows from here are written
  int64_t sequence = -1;
};

struct StepWork {
  int64_t step = 0;
  std::vector<BlockTransfer> transfers;
  std::vector<BlockCopy> copies;
  std::vector<Rows> rows;
};

struct FakeDisk {
  std::map<std::pair<uint64_t, uint64_t>, std::vector<uint64_t>> blocks;
  struct Unit {
    uint64_t salt;
    Tokens tokens;
  };
  std::map<std::pair<uint64_t, uint64_t>, Unit> units;
};

std::pair<uint64_t, uint64_t> name(const ContentKey& key) { return {key.high, key.low}; }

class Rig {
 public:
  Rig(uint32_t seed, const CacheLayout& layout, const KvCacheOptions& options)
      : random_(seed),
        layout_(layout),
        options_(options),
        device_(layout, options.num_blocks),
        host_(layout, options.num_host_blocks) {
    cache_ = std::make_unique<KvCache>(layout, options);
  }

  void operate() {
    constexpr void (Rig::*kOperations[])() = {
        &Rig::start,   &Rig::start,   &Rig::start,   &Rig::extend,  &Rig::extend,    &Rig::extend,   &Rig::extend,
        &Rig::publish, &Rig::publish, &Rig::publish, &Rig::drop,    &Rig::finish,    &Rig::finish,   &Rig::poll,
        &Rig::disk,    &Rig::execute, &Rig::execute, &Rig::collect, &Rig::plan_done, &Rig::plan_done};
    (this->*kOperations[random_() % std::size(kOperations)])();
  }
  void check() {
    std::vector<const BlockTable*> tables;
    for (const Sequence& sequence : sequences_) tables.push_back(&sequence.table);
    ASSERT_EQ(cache_->check(tables), "");
  }
  // Everything under way comes to its end.
  void settle() {
    for (int i = 0; i < 4; ++i) {
      plan_done();
      while (!work_.empty()) execute();
      collect_all();
      while (!jobs_.empty()) disk();
      for (size_t s = 0; s < sequences_.size(); ++s) poll_one(s);
    }
  }
  void restart() {
    finish_all();
    for (int i = 0; i < 50 && cache_->save_all_units() > 0; ++i) settle();
    settle();
    retire_counters();
    cache_ = std::make_unique<KvCache>(layout_, options_);
    for (const auto& [key, unit] : disk_.units) cache_->add_stored_unit(unit.tokens, unit.salt);
    jobs_.clear();
    check();
  }
  void finish_all() {
    settle();
    while (!sequences_.empty()) finish();
    settle();
    check();
  }
  void expect_all_free() {
    finish_all();
    cache_->drop_all_units();
    settle();
    for (size_t g = 0; g < layout_.groups.size(); ++g) {
      ASSERT_EQ(cache_->num_free(static_cast<int>(g)), options_.num_blocks[g]);
      ASSERT_EQ(cache_->num_free_host(static_cast<int>(g)), options_.num_host_blocks[g]);
    }
    check();
    retire_counters();
  }
  const KvCacheCounters& totals() const { return totals_; }

 private:
  void retire_counters() {
    const KvCacheCounters& c = cache_->counters();
    totals_.adopted += c.adopted;
    totals_.host_hit_tokens += c.host_hit_tokens;
    totals_.disk_hit_tokens += c.disk_hit_tokens;
    totals_.host_saved_bytes += c.host_saved_bytes;
    totals_.disk_load_failures += c.disk_load_failures;
    totals_.disk_save_failures += c.disk_save_failures;
    totals_.host_saves_skipped += c.host_saves_skipped;
  }

  void append_random(Tokens& tokens, int64_t count) {
    for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(random_() % 12 == 0 ? 1 : 0));
  }

  void start() {
    if (sequences_.size() >= 6) return;
    Sequence sequence;
    sequence.id = next_sequence_++;
    sequence.salt = random_() % 2;
    append_random(sequence.prompt, 2 + random_() % 30);
    const auto max_length = static_cast<int64_t>(sequence.prompt.size()) - 1;
    sequence.table = cache_->make_table(100);
    const PrefixMatch match = cache_->match(sequence.prompt, max_length, sequence.salt);
    ASSERT_LE(std::max(match.length, match.stored_length), max_length);
    ASSERT_TRUE(match.stored_length == 0 || match.stored_length > match.length);
    if (match.stored_length > 0 && random_() % 8 != 0) {
      sequence.load = cache_->begin_load(match, sequence.table);
      sequence.load_length = match.stored_length;
      if (sequence.load < 0) {
        for (const auto& group : sequence.table.groups) ASSERT_TRUE(group.blocks.empty());
        return;
      }
      sequences_.push_back(std::move(sequence));
      if (random_() % 2 == 0) poll_one(sequences_.size() - 1);
      return;
    }
    if (match.length > 0) {
      if (!cache_->adopt(match, sequence.table, copies_)) return;
      begin_at(sequence, match.length);
    }
    sequences_.push_back(std::move(sequence));
  }

  void begin_at(Sequence& sequence, int64_t length) {
    sequence.tokens.assign(sequence.prompt.begin(), sequence.prompt.begin() + length);
    sequence.committed = sequence.may_return = length;
    rows_.push_back({sequence.table, sequence.tokens, sequence.salt, length, sequence.id});
  }

  void poll() {
    if (!sequences_.empty()) poll_one(random_() % sequences_.size());
  }
  void poll_one(size_t which) {
    Sequence& sequence = sequences_[which];
    if (sequence.load < 0) return;
    const LoadState state = cache_->load_state(sequence.load);
    if (state == LoadState::kPending) return;
    sequence.load = -1;
    if (state == LoadState::kReady) return begin_at(sequence, sequence.load_length);
    cache_->release(sequence.table, step_);
  }

  Sequence* any_running() {
    if (sequences_.empty()) return nullptr;
    Sequence& sequence = sequences_[random_() % sequences_.size()];
    return sequence.load < 0 ? &sequence : nullptr;
  }

  void extend() {
    Sequence* sequence = any_running();
    if (sequence == nullptr) return;
    const int64_t count = 1 + random_() % 9;
    const auto begin = static_cast<int64_t>(sequence->tokens.size());
    if (begin + count > 60 || !cache_->reserve(sequence->table, begin + count)) return;
    append_random(sequence->tokens, count);
    rows_.push_back({sequence->table, sequence->tokens, sequence->salt, begin, sequence->id});
  }

  void publish() {
    Sequence* sequence = any_running();
    if (sequence == nullptr || sequence->committed == 0) return;
    const int64_t at =
        sequence->may_return + static_cast<int64_t>(random_() % (sequence->committed - sequence->may_return + 1));
    if (at == 0) return;
    cache_->publish(sequence->table, std::span(sequence->tokens).first(at), sequence->salt);
    ASSERT_EQ(cache_->match(std::span(sequence->tokens).first(at), at, sequence->salt).length, at);
  }

  void drop() {
    Sequence* sequence = any_running();
    if (sequence == nullptr) return;
    const int64_t keep = std::max(sequence->may_return, sequence->committed - static_cast<int64_t>(random_() % 3));
    cache_->drop_unneeded(sequence->table, keep, step_);
    sequence->may_return = keep;
  }

  void finish() {
    if (sequences_.empty()) return;
    const size_t which = random_() % sequences_.size();
    if (sequences_[which].load >= 0) cache_->abandon_load(sequences_[which].load);
    cache_->release(sequences_[which].table, step_);
    sequences_.erase(sequences_.begin() + static_cast<int64_t>(which));
  }

  void plan_done() {
    StepWork work{.step = step_};
    cache_->take_transfers(step_, work.transfers);
    work.copies = std::exchange(copies_, {});
    work.rows = std::exchange(rows_, {});
    work_.push_back(std::move(work));
    ++step_;
    while (work_.size() > 3) execute();
    std::vector<DiskJob> jobs;
    cache_->take_disk_jobs(jobs);
    for (DiskJob& job : jobs) jobs_.push_back(std::move(job));
  }

  // The device does one step.
  void execute() {
    if (work_.empty()) return;
    const StepWork work = std::move(work_.front());
    work_.pop_front();
    for (const BlockTransfer& t : work.transfers) {
      const auto on_device = device_.block(t.group, t.device_block);
      const auto in_host = host_.block(t.group, t.host_block);
      if (t.direction == BlockTransfer::Direction::kSave) {
        std::copy(on_device.begin(), on_device.end(), in_host.begin());
      } else {
        std::copy(in_host.begin(), in_host.end(), on_device.begin());
      }
    }
    for (const BlockCopy& copy : work.copies) device_.copy(copy.group, copy.from, copy.to);
    // Rows are read in the order in which they were planned, each before and after those that follow.
    for (const Rows& rows : work.rows) {
      ASSERT_TRUE(device_.holds(rows.table, std::span(rows.tokens).first(rows.begin), rows.salt));
      device_.write(rows.table, rows.tokens, rows.salt, rows.begin);
    }
    for (const Rows& rows : work.rows) executed_[rows.sequence] = static_cast<int64_t>(rows.tokens.size());
    executed_step_ = work.step;
  }

  // The engine learns of the steps that the device has done.
  void collect() {
    if (random_() % 3 != 0) collect_all();
  }
  void collect_all() {
    for (Sequence& sequence : sequences_)
      if (const auto done = executed_.find(sequence.id); done != executed_.end() && sequence.load < 0)
        sequence.committed = std::max(sequence.committed, done->second);
    cache_->steps_done(executed_step_);
    std::vector<DiskJob> jobs;
    cache_->take_disk_jobs(jobs);
    for (DiskJob& job : jobs) jobs_.push_back(std::move(job));
  }

  // The disk's worker does one job, and forgets things now and then.
  void disk() {
    if (jobs_.empty()) return;
    const DiskJob job = std::move(jobs_.front());
    jobs_.pop_front();
    DiskJobResult result{.id = job.id, .ok = random_() % 10 != 0};
    if (random_() % 10 == 0 && !disk_.units.empty()) {
      const auto lost = std::next(disk_.units.begin(), random_() % disk_.units.size());
      result.gone.push_back({lost->first.first, lost->first.second});
      disk_.units.erase(lost);
    }
    if (random_() % 20 == 0 && !disk_.blocks.empty())
      disk_.blocks.erase(std::next(disk_.blocks.begin(), random_() % disk_.blocks.size()));
    if (job.kind == DiskJob::Kind::kSave) {
      save(job, result);
    } else {
      load(job, result);
    }
    cache_->disk_job_done(result);
  }

  void save(const DiskJob& job, DiskJobResult& result) {
    if (!result.ok) return;
    for (const DiskJob::Block& block : job.blocks) {
      const auto rows = host_.block(block.group, block.host_block);
      disk_.blocks.try_emplace(name(block.key), rows.begin(), rows.end());
    }
    disk_.units[name(job.unit)] = {job.salt, job.tokens};
  }

  void load(const DiskJob& job, DiskJobResult& result) {
    const auto unit = disk_.units.find(name(job.unit));
    if (unit == disk_.units.end()) result.ok = false;
    if (!result.ok) return;
    ASSERT_EQ(unit->second.tokens, job.tokens);
    ASSERT_EQ(unit->second.salt, job.salt);
    for (const DiskJob::Block& block : job.blocks) {
      const auto stored = disk_.blocks.find(name(block.key));
      if (stored == disk_.blocks.end()) {
        result.ok = false;
        result.gone.push_back(job.unit);
        disk_.units.erase(unit);
        return;
      }
      std::copy(stored->second.begin(), stored->second.end(), host_.block(block.group, block.host_block).begin());
    }
  }

  std::mt19937 random_;
  CacheLayout layout_;
  KvCacheOptions options_;
  RowMemory device_, host_;
  std::unique_ptr<KvCache> cache_;
  std::vector<Sequence> sequences_;
  int64_t next_sequence_ = 0;
  int64_t step_ = 0;  // being planned
  std::vector<BlockCopy> copies_;
  std::vector<Rows> rows_;
  std::deque<StepWork> work_;
  int64_t executed_step_ = -1;
  std::map<int64_t, int64_t> executed_;  // by sequence: rows
  std::deque<DiskJob> jobs_;
  FakeDisk disk_;
  KvCacheCounters totals_;
};

CacheLayout layout() {
  return {{{.name = "all", .tokens_per_block = 4, .block_bytes = 1},
           {.name = "window", .tokens_per_block = 2, .block_bytes = 1, .retention = 6},
           {.name = "long", .tokens_per_block = 8, .block_bytes = 1},
           {.name = "one", .tokens_per_block = 1, .block_bytes = 1, .retention = 3}}};
}

// Adds to `totals` what was counted.
void run(uint32_t seed, const KvCacheOptions& options, bool restarts, KvCacheCounters& totals) {
  Rig rig(seed, layout(), options);
  for (int i = 0; i < 6000; ++i) {
    rig.operate();
    if (i % 7 == 0) rig.check();
    if (restarts && i % 1000 == 999) rig.restart();
    if (::testing::Test::HasFatalFailure()) FAIL() << "operation " << i << " of seed " << seed;
  }
  rig.expect_all_free();
  totals.adopted += rig.totals().adopted;
  totals.host_hit_tokens += rig.totals().host_hit_tokens;
  totals.disk_hit_tokens += rig.totals().disk_hit_tokens;
  totals.host_saves_skipped += rig.totals().host_saves_skipped;
  totals.disk_load_failures += rig.totals().disk_load_failures;
  totals.disk_save_failures += rig.totals().disk_save_failures;
}

TEST(KvCacheTiersProperty, RowsComeBackFromHostMemoryAsTheyWere) {
  KvCacheCounters totals;
  for (uint32_t seed = 0; seed < 10 && !HasFatalFailure(); ++seed)
    run(seed,
        {.num_blocks = {24, 40, 14, 60},
         .max_units = 1000,
         .debug = seed % 2 == 0,
         .num_host_blocks = {50, 60, 30, 90}},
        false, totals);
  EXPECT_GT(totals.host_hit_tokens, 5000);
  EXPECT_GT(totals.adopted, 1000);
}

TEST(KvCacheTiersProperty, RowsComeBackFromADiskThatLosesThingsAndAfterRestarts) {
  KvCacheCounters totals;
  for (uint32_t seed = 100; seed < 112 && !HasFatalFailure(); ++seed)
    run(seed,
        {.num_blocks = {24, 40, 14, 60},
         .max_units = 1000,
         .debug = seed % 2 == 0,
         .num_host_blocks = {20, 36, 12, 50},
         .disk = true,
         .fingerprint = cache_fingerprint(layout(), "test")},
        true, totals);
  EXPECT_GT(totals.host_hit_tokens, 500);
  EXPECT_GT(totals.disk_hit_tokens, 1000);
  EXPECT_GT(totals.disk_load_failures, 10);
  EXPECT_GT(totals.disk_save_failures, 10);
}

TEST(KvCacheTiersProperty, NothingBreaksWhileUnitsAreFewAndHostMemoryIsTight) {
  KvCacheCounters totals;
  for (uint32_t seed = 200; seed < 210 && !HasFatalFailure(); ++seed)
    run(seed,
        {.num_blocks = {24, 40, 14, 60},
         .max_units = 9,
         .debug = true,
         .num_host_blocks = {9, 12, 6, 16},
         .disk = true,
         .fingerprint = cache_fingerprint(layout(), "test")},
        true, totals);
  EXPECT_GT(totals.host_saves_skipped, 50);
}

}  // namespace
}  // namespace deepinfer
