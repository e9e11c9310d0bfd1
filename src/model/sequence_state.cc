#include "model/sequence_state.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer {

OwnBlocks::OwnBlocks(const CacheLayout& layout) : free_(layout.groups.size()) {
  for (const CacheGroup& group : layout.groups) block_bytes_.push_back(group.block_bytes);
}

std::byte* OwnBlocks::take(int group) {
  if (free_[group].empty()) {
    owned_.push_back(std::make_unique<std::byte[]>(block_bytes_[group]));
    bytes_ += block_bytes_[group];
    return owned_.back().get();
  }
  std::byte* block = free_[group].back();
  free_[group].pop_back();
  return block;
}

SequenceState::SequenceState(std::shared_ptr<const KvLayout> layout, int64_t max_rollback)
    : layout_(std::move(layout)),
      max_rollback_(max_rollback),
      blocks_(layout_->cache.groups.size()),
      first_block_(layout_->cache.groups.size(), 0) {
  DI_CHECK(max_rollback >= 0, "max_rollback {}", max_rollback);
  for (const KvLayout::Member& m : layout_->members)
    tables_.push_back({nullptr, m.block_shift, m.type, m.width, m.offset});
}

SequenceState SequenceState::with_own_blocks(std::shared_ptr<const KvLayout> layout, int64_t max_rollback) {
  SequenceState state(std::move(layout), max_rollback);
  state.own_ = std::make_unique<OwnBlocks>(state.layout_->cache);
  return state;
}

SequenceState SequenceState::with_placed_blocks(std::shared_ptr<const KvLayout> layout, int64_t max_tokens) {
  SequenceState state(std::move(layout), 0);
  state.set_capacity(max_tokens);
  return state;
}

// Placed blocks: none so far.
void SequenceState::set_capacity(int64_t max_tokens) {
  engram_ids_.reserve(max_tokens);
  for (size_t g = 0; g < blocks_.size(); ++g) {
    const int64_t tokens = layout_->cache.groups[g].tokens_per_block;
    blocks_[g].assign((max_tokens + tokens - 1) / tokens, nullptr);
  }
  refresh_tables();
}

void SequenceState::refresh_tables() {
  for (size_t m = 0; m < tables_.size(); ++m) tables_[m].blocks = blocks_[layout_->members[m].group].data();
}

int64_t SequenceState::bytes() const {
  return static_cast<int64_t>(engram_ids_.capacity() * sizeof(int32_t)) + (own_ ? own_->bytes() : 0);
}

Status SequenceState::roll_back(int64_t num_tokens) {
  const int64_t shortest = own_ ? std::max<int64_t>(0, longest_ - max_rollback_) : 0;
  if (num_tokens < 0 || length_ - num_tokens < shortest) {
    return invalid_input("cannot roll back {} tokens of {}: rows are kept back to token {}", num_tokens, length_,
                         shortest);
  }
  length_ -= num_tokens;
  if (!engram_ids_.empty()) engram_ids_.resize(length_);
  return Status();
}

void SequenceState::begin_step(int64_t num_tokens, std::span<const int32_t> compressed_ids) {
  const int64_t end = length_ + num_tokens;
  engram_ids_.resize(engram_ids_.empty() ? 0 : length_);  // a step that failed half way leaves ids behind
  engram_ids_.insert(engram_ids_.end(), compressed_ids.begin(), compressed_ids.end());
  if (!own_) return;
  for (size_t g = 0; g < blocks_.size(); ++g) {
    const int64_t tokens = layout_->cache.groups[g].tokens_per_block;
    const int64_t num_blocks = (end + tokens - 1) / tokens;
    while (static_cast<int64_t>(blocks_[g].size()) < num_blocks) blocks_[g].push_back(own_->take(static_cast<int>(g)));
  }
  refresh_tables();
}

void SequenceState::end_step(int64_t num_tokens) {
  length_ += num_tokens;
  longest_ = std::max(longest_, length_);
  if (!own_) return;
  for (size_t g = 0; g < blocks_.size(); ++g) {
    const CacheGroup& group = layout_->cache.groups[g];
    if (group.retention == CacheGroup::kKeepAll) continue;
    const int64_t begin = (longest_ - max_rollback_ - group.retention) / group.tokens_per_block;
    for (int64_t& first = first_block_[g]; first < begin; ++first) {
      own_->give_back(static_cast<int>(g), blocks_[g][first]);
      blocks_[g][first] = nullptr;
    }
  }
}

void SequenceState::place_block(int group, int64_t number, std::byte* block) {
  DI_CHECK(!own_ && number < static_cast<int64_t>(blocks_[group].size()), "block {} of group {}", number, group);
  blocks_[group][number] = block;
}

void SequenceState::restart(int64_t length, std::span<const int32_t> compressed_ids, int64_t max_tokens) {
  DI_CHECK(!own_ && length <= max_tokens, "restart with {} tokens of {}", length, max_tokens);
  set_capacity(max_tokens);
  length_ = longest_ = length;
  engram_ids_.assign(compressed_ids.begin(), compressed_ids.end());
}

}  // namespace deepinfer
