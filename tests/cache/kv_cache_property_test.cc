// Random sequences of operations on a small cache, with a device memory of numbers (row_rig.h): whatever happens, a
// sequence reads the rows it would have computed itself, and every block is accounted for.
#include <algorithm>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "cache/kv_cache.h"
#include "cache/row_rig.h"

namespace deepinfer {
namespace {

using Tokens = std::vector<int32_t>;

struct Sequence {
  uint64_t salt = 0;
  Tokens tokens;           // all of them have their rows
  int64_t may_return = 0;  // rows below are gone for a unit or a shorter sequence
  BlockTable table;
};

class Rig {
 public:
  Rig(uint32_t seed, const CacheLayout& layout, const KvCacheOptions& options)
      : random_(seed), layout_(layout), cache_(layout, options), memory_(layout, options.num_blocks) {
    for (const int32_t blocks : options.num_blocks) named_until_.emplace_back(blocks, -1);
  }

  void operate() {
    switch (random_() % 10) {
      case 0:
      case 1:
        return start();
      case 2:
      case 3:
      case 4:
        return extend();
      case 5:
        return publish();
      case 6:
        return drop();
      case 7:
        return finish();
      default:
        return advance();
    }
  }
  void check() {
    std::vector<const BlockTable*> tables;
    for (const Sequence& sequence : sequences_) tables.push_back(&sequence.table);
    ASSERT_EQ(cache_.check(tables), "");
    for (Sequence& sequence : sequences_) ASSERT_TRUE(memory_.holds(sequence.table, sequence.tokens, sequence.salt));
  }
  void finish_all() {
    while (!sequences_.empty()) finish();
    cache_.drop_all_units();
    cache_.steps_done(step_);
    for (size_t g = 0; g < layout_.groups.size(); ++g)
      ASSERT_EQ(cache_.num_free(static_cast<int>(g)), cache_.capacity(static_cast<int>(g)));
    check();
  }
  int64_t num_adopted() const { return cache_.counters().adopted; }
  int64_t num_evicted() const { return cache_.counters().evicted; }
  int64_t num_refused() const { return num_refused_; }

 private:
  // Few tokens, so that prefixes are shared often.
  void append_random(Tokens& tokens, int64_t count) {
    for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(random_() % 4 == 0 ? random_() % 3 : 0));
  }

  void start() {
    if (sequences_.size() >= 6) return;
    Sequence sequence;
    sequence.salt = random_() % 2;
    Tokens prompt;
    append_random(prompt, 2 + random_() % 30);
    const auto max_length = static_cast<int64_t>(prompt.size()) - 1;
    sequence.table = cache_.make_table(100);
    const PrefixMatch match = cache_.match(prompt, max_length, sequence.salt);
    ASSERT_LE(match.length, max_length);
    ASSERT_GE(match.branch_length, match.length);
    if (match.length > 0) {
      sequence.tokens.assign(prompt.begin(), prompt.begin() + match.length);
      const auto published = published_.find({sequence.salt, sequence.tokens});
      ASSERT_NE(published, published_.end());
      std::vector<BlockCopy> copies;
      if (!cache_.adopt(match, sequence.table, copies)) {
        ASSERT_TRUE(copies.empty());
        ++num_refused_;
        return;
      }
      compare(sequence, published->second, copies);
      for (const BlockCopy& copy : copies) {
        expect_unnamed(copy.group, copy.to);
        memory_.copy(copy.group, copy.from, copy.to);
      }
      ASSERT_TRUE(memory_.holds(sequence.table, sequence.tokens, sequence.salt));
      sequence.may_return = match.length;
    }
    if (random_() % 2 == 0) cache_.see(prompt, sequence.salt);
    sequences_.push_back(std::move(sequence));
  }

  // An adopted table is the published one, block for block, but for the copies.
  void compare(const Sequence& sequence, const BlockTable& published, const std::vector<BlockCopy>& copies) {
    size_t num_copies = 0;
    for (size_t g = 0; g < layout_.groups.size(); ++g) {
      const BlockTable::Group& group = sequence.table.groups[g];
      const auto length = static_cast<int64_t>(sequence.tokens.size());
      const bool is_partial = length % layout_.groups[g].tokens_per_block != 0;
      for (size_t b = group.first; b + is_partial < group.blocks.size(); ++b)
        ASSERT_EQ(group.blocks[b], published.groups[g].blocks[b]);
      if (!is_partial) continue;
      ASSERT_LT(num_copies, copies.size());
      ASSERT_EQ(copies[num_copies].group, static_cast<int32_t>(g));
      ASSERT_EQ(copies[num_copies].from, published.groups[g].blocks[group.blocks.size() - 1]);
      ASSERT_EQ(copies[num_copies].to, group.blocks.back());
      ++num_copies;
    }
    ASSERT_EQ(num_copies, copies.size());
  }

  void extend() {
    if (sequences_.empty()) return;
    Sequence& sequence = any();
    const int64_t count = 1 + random_() % 9;
    const auto begin = static_cast<int64_t>(sequence.tokens.size());
    if (begin + count > 90) return;
    std::vector<size_t> sizes;
    std::vector<int32_t> needed;
    for (size_t g = 0; g < layout_.groups.size(); ++g) {
      const int32_t rows = layout_.groups[g].tokens_per_block;
      sizes.push_back(sequence.table.groups[g].blocks.size());
      needed.push_back(static_cast<int32_t>((begin + count + rows - 1) / rows - static_cast<int64_t>(sizes.back())));
    }
    const bool could = cache_.could_reserve(needed);
    ASSERT_EQ(cache_.reserve(sequence.table, begin + count), could);
    if (!could) {
      ++num_refused_;
      for (size_t g = 0; g < sizes.size(); ++g) ASSERT_EQ(sequence.table.groups[g].blocks.size(), sizes[g]);
      return;
    }
    for (size_t g = 0; g < sizes.size(); ++g)
      for (size_t b = sizes[g]; b < sequence.table.groups[g].blocks.size(); ++b)
        expect_unnamed(static_cast<int>(g), sequence.table.groups[g].blocks[b]);
    append_random(sequence.tokens, count);
    memory_.write(sequence.table, sequence.tokens, sequence.salt, begin);
  }

  void publish() {
    if (sequences_.empty()) return;
    Sequence& sequence = any();
    const auto length = static_cast<int64_t>(sequence.tokens.size());
    if (length == 0) return;
    const int64_t at = sequence.may_return + static_cast<int64_t>(random_() % (length - sequence.may_return + 1));
    if (at == 0) return;
    const Tokens tokens(sequence.tokens.begin(), sequence.tokens.begin() + at);
    const int64_t before = cache_.counters().published;
    cache_.publish(sequence.table, tokens, sequence.salt);
    if (cache_.counters().published > before) published_[{sequence.salt, tokens}] = sequence.table;
    ASSERT_EQ(cache_.match(tokens, at, sequence.salt).length, at);
  }

  void drop() {
    if (sequences_.empty()) return;
    Sequence& sequence = any();
    const auto length = static_cast<int64_t>(sequence.tokens.size());
    const int64_t keep = std::max(sequence.may_return, length - static_cast<int64_t>(random_() % 3));
    const BlockTable before = sequence.table;
    cache_.drop_unneeded(sequence.table, keep, step_);
    for (size_t g = 0; g < layout_.groups.size(); ++g)
      for (int64_t b = before.groups[g].first; b < sequence.table.groups[g].first; ++b)
        name(g, before.groups[g].blocks[b]);
    sequence.may_return = keep;
  }

  void finish() {
    if (sequences_.empty()) return;
    const size_t which = random_() % sequences_.size();
    for (size_t g = 0; g < layout_.groups.size(); ++g) {
      const BlockTable::Group& group = sequences_[which].table.groups[g];
      for (size_t b = group.first; b < group.blocks.size(); ++b) name(g, group.blocks[b]);
    }
    cache_.release(sequences_[which].table, step_);
    sequences_.erase(sequences_.begin() + static_cast<int64_t>(which));
  }

  void advance() {
    ++step_;
    if (random_() % 3 != 0) done_ = std::max(done_, step_ - static_cast<int64_t>(random_() % 3) - 1);
    cache_.steps_done(done_);
  }

  Sequence& any() { return sequences_[random_() % sequences_.size()]; }
  void name(size_t group, BlockId block) { named_until_[group][block] = step_; }
  void expect_unnamed(int group, BlockId block) { ASSERT_LE(named_until_[group][block], done_); }

  std::mt19937 random_;
  CacheLayout layout_;
  KvCache cache_;
  RowMemory memory_;
  std::vector<Sequence> sequences_;
  std::map<std::pair<uint64_t, Tokens>, BlockTable> published_;  // the latest publication of these tokens
  std::vector<std::vector<int64_t>> named_until_;                // a group, a block: the last step that may name it
  int64_t step_ = 0, done_ = -1;
  int64_t num_refused_ = 0;
};

CacheLayout layout() {
  return {{{.name = "all", .tokens_per_block = 4, .block_bytes = 1},
           {.name = "window", .tokens_per_block = 2, .block_bytes = 1, .retention = 6},
           {.name = "long", .tokens_per_block = 8, .block_bytes = 1},
           {.name = "one", .tokens_per_block = 1, .block_bytes = 1, .retention = 3}}};
}

void run(uint32_t seed, const KvCacheOptions& options, bool is_tight) {
  Rig rig(seed, layout(), options);
  for (int i = 0; i < 4000; ++i) {
    rig.operate();
    if (i % 7 == 0) rig.check();
    if (::testing::Test::HasFatalFailure()) FAIL() << "operation " << i << " of seed " << seed;
  }
  rig.finish_all();
  EXPECT_GT(rig.num_adopted(), 50);
  EXPECT_GT(rig.num_evicted(), is_tight ? 50 : -1);
  EXPECT_GT(rig.num_refused(), is_tight ? 10 : -1);
}

TEST(KvCacheProperty, SequencesReadTheirOwnRowsWhenBlocksAreScarce) {
  for (uint32_t seed = 0; seed < 12 && !HasFatalFailure(); ++seed)
    run(seed, {.num_blocks = {24, 40, 14, 60}, .max_units = 1000, .debug = seed % 2 == 0}, true);
}

TEST(KvCacheProperty, SequencesReadTheirOwnRowsWhenOneGroupIsScarce) {
  for (uint32_t seed = 100; seed < 106 && !HasFatalFailure(); ++seed)
    run(seed, {.num_blocks = {200, 26, 100, 400}, .max_units = 1000, .debug = true}, true);
}

TEST(KvCacheProperty, SequencesReadTheirOwnRowsWhenUnitsAreFew) {
  for (uint32_t seed = 200; seed < 206 && !HasFatalFailure(); ++seed)
    run(seed, {.num_blocks = {300, 300, 150, 500}, .max_units = 7, .debug = true}, false);
}

}  // namespace
}  // namespace deepinfer
