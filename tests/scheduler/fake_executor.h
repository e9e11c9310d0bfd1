// FakeExecutor: a device without a model. Every row it writes is a hash of the tokens up to its position, every row
// that a real model would read is compared with the hash that its sequence must have there, and the next token is a
// function of that hash. So a block that was shared in writing, reused too early, copied too late or forgotten shows as
// a wrong row, and an answer is known beforehand from the prompt alone.
#pragma once

#include <deque>
#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "cache/cache_layout.h"
#include "step/executor.h"

namespace deepinfer {

inline uint64_t mix_hash(uint64_t h, uint64_t value) {
  h = (h ^ value) * 0x9E3779B97F4A7C15u;
  h ^= h >> 29;
  h *= 0xBF58476D1CE4E5B9u;
  return h ^ (h >> 32);
}

inline constexpr int32_t kFakeEndToken = 7;

// The token after a prefix with this hash; one in thirty ends the answer.
inline int32_t fake_token(uint64_t hash) {
  const auto draw = static_cast<int32_t>(mix_hash(hash, 1) % 30);
  return draw == 0 ? kFakeEndToken : 100 + static_cast<int32_t>(mix_hash(hash, 2) % 50);
}

// The answer that any correct engine gives.
inline std::vector<int32_t> fake_answer(std::vector<int32_t> tokens, int64_t max_tokens) {
  uint64_t hash = 0;
  for (const int32_t token : tokens) hash = mix_hash(hash, token);
  std::vector<int32_t> answer;
  while (static_cast<int64_t>(answer.size()) < max_tokens) {
    answer.push_back(fake_token(hash));
    if (answer.back() == kFakeEndToken) break;
    hash = mix_hash(hash, answer.back());
  }
  return answer;
}

class FakeExecutor final : public Executor {
 public:
  FakeExecutor(CacheLayout layout, const std::vector<int32_t>& num_blocks, const std::vector<int32_t>& num_host_blocks,
               int32_t num_slots, uint32_t seed)
      : layout_(std::move(layout)), slots_(num_slots), random_(seed) {
    for (size_t g = 0; g < layout_.groups.size(); ++g) {
      const std::vector<uint64_t> empty(layout_.groups[g].tokens_per_block, 0);
      rows_.emplace_back(num_blocks[g], empty);
      host_rows_.emplace_back(num_host_blocks.empty() ? 0 : num_host_blocks[g], empty);
    }
    for (Slot& slot : slots_) slot.blocks.resize(layout_.groups.size());
  }

  int max_in_flight() const override { return 2; }

  void launch(const StepPlan& plan) override {
    ASSERT_EQ(plan.items.empty(), plan.kind == StepKind::kPlaceholder);
    waiting_.push_back(&plan);
    ASSERT_LE(waiting_.size() + done_.size(), 2u);
    if (random_() % 2 == 0) run_one();  // the device may be fast or slow
  }

  const StepResult& collect() override {
    if (done_.empty()) run_one();
    result_ = std::move(done_.front());
    done_.pop_front();
    return result_;
  }

  uint32_t draw() { return random_(); }
  int64_t rows_checked() const { return rows_checked_; }
  std::vector<uint64_t>& host_block(int32_t group, BlockId block) { return host_rows_[group][block]; }

 private:
  struct Slot {
    uint32_t generation = 0;
    std::vector<int32_t> tokens;   // processed
    std::vector<uint64_t> hashes;  // [position]
    int32_t last_token = -1;
    std::vector<std::map<int64_t, BlockId>> blocks;  // [group], by number
  };

  void run_one() {
    const StepPlan& plan = *waiting_.front();
    waiting_.pop_front();
    for (const SlotStart& start : plan.starts) {
      Slot& slot = slots_[start.slot.slot];
      slot.generation = start.slot.generation;
      slot.tokens.clear();
      slot.hashes.clear();
      for (auto& blocks : slot.blocks) blocks.clear();
      for (const int32_t token : start.tokens.first(start.length)) push(slot, token);
    }
    for (const BlockEdit& edit : plan.block_edits) slots_[edit.slot].blocks[edit.group][edit.number] = edit.block;
    for (const BlockTransfer& t : plan.transfers) {
      std::vector<uint64_t>&device = rows_[t.group][t.device_block], &host = host_rows_[t.group][t.host_block];
      (t.direction == BlockTransfer::Direction::kSave ? host : device) =
          t.direction == BlockTransfer::Direction::kSave ? device : host;
    }
    for (const BlockCopy& copy : plan.copies) rows_[copy.group][copy.to] = rows_[copy.group][copy.from];
    StepResult result{.id = plan.id, .kind = plan.kind};
    for (const StepItem& item : plan.items) result.items.push_back(run_item(item));
    done_.push_back(std::move(result));
  }

  ItemResult run_item(const StepItem& item) {
    Slot& slot = slots_[item.slot.slot];
    ItemResult result{.slot = item.slot};
    EXPECT_EQ(slot.generation, item.slot.generation);
    EXPECT_EQ(static_cast<int64_t>(slot.tokens.size()), item.begin) << "an item does not follow on the one before";
    const std::vector<int32_t> tokens = item.tokens.empty()
                                            ? std::vector<int32_t>{slot.last_token}
                                            : std::vector<int32_t>(item.tokens.begin(), item.tokens.end());
    for (const int32_t token : tokens) {
      const auto position = static_cast<int64_t>(slot.tokens.size());
      push(slot, token);
      for (size_t g = 0; g < layout_.groups.size(); ++g) row(slot, g, position) = slot.hashes[position];
    }
    for (size_t g = 0; g < layout_.groups.size(); ++g) {
      const auto end = static_cast<int64_t>(slot.tokens.size());
      const int64_t keep = layout_.groups[g].retention;
      for (int64_t p = keep > item.begin ? 0 : item.begin - keep; p < end; ++p, ++rows_checked_) {
        EXPECT_EQ(row(slot, g, p), slot.hashes[p]) << layout_.groups[g].name << " row " << p << " of " << end;
      }
    }
    if (item.samples) result.token = slot.last_token = fake_token(slot.hashes.back());
    return result;
  }

  void push(Slot& slot, int32_t token) {
    slot.hashes.push_back(mix_hash(slot.hashes.empty() ? 0 : slot.hashes.back(), token));
    slot.tokens.push_back(token);
  }

  uint64_t& row(Slot& slot, size_t group, int64_t position) {
    const int64_t size = layout_.groups[group].tokens_per_block;
    const auto at = slot.blocks[group].find(position / size);
    if (at == slot.blocks[group].end()) {
      ADD_FAILURE() << layout_.groups[group].name << ": no block for row " << position;
      return nowhere_;
    }
    return rows_[group][at->second][position % size];
  }

  CacheLayout layout_;
  std::vector<Slot> slots_;
  std::mt19937 random_;
  std::vector<std::vector<std::vector<uint64_t>>> rows_, host_rows_;  // [group][block][row]
  std::deque<const StepPlan*> waiting_;
  std::deque<StepResult> done_;
  StepResult result_;
  uint64_t nowhere_ = 0;
  int64_t rows_checked_ = 0;
};

}  // namespace deepinfer
