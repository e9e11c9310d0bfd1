#include "model/sequence_state.h"

#include <algorithm>

#include "base/check.h"
#include "device/array.h"

namespace deepinfer {

OwnBlocks::OwnBlocks(Device& device, const CacheLayout& layout) : device_(device), free_(layout.groups.size()) {
  for (const CacheGroup& group : layout.groups) block_bytes_.push_back(group.block_bytes);
}

Result<std::byte*> OwnBlocks::take(int group) {
  if (free_[group].empty()) {
    DI_ASSIGN_OR_RETURN(std::shared_ptr<std::byte> block,
                        allocate_on(device_, block_bytes_[group], "rows of a sequence", "run shorter sequences"));
    owned_.push_back(std::move(block));
    bytes_ += block_bytes_[group];
    return owned_.back().get();
  }
  std::byte* block = free_[group].back();
  free_[group].pop_back();
  return block;
}

SequenceState::SequenceState(Device& device, std::shared_ptr<const KvLayout> layout, int64_t max_rollback)
    : layout_(std::move(layout)),
      max_rollback_(max_rollback),
      tables_(device, static_cast<int>(layout_->cache.groups.size())),
      sizes_(layout_->cache.groups.size()),
      first_block_(layout_->cache.groups.size(), 0) {
  DI_CHECK(max_rollback >= 0, "max_rollback {}", max_rollback);
}

SequenceState SequenceState::with_own_blocks(Device& device, std::shared_ptr<const KvLayout> layout,
                                             int64_t max_rollback) {
  SequenceState state(device, std::move(layout), max_rollback);
  state.own_ = std::make_unique<OwnBlocks>(device, state.layout_->cache);
  return state;
}

SequenceState SequenceState::with_placed_blocks(Device& device, std::shared_ptr<const KvLayout> layout) {
  return {device, std::move(layout), 0};
}

// By group; valid until the next call.
std::span<const int64_t> SequenceState::blocks_for(int64_t num_tokens) {
  for (size_t g = 0; g < sizes_.size(); ++g) {
    const int64_t tokens = layout_->cache.groups[g].tokens_per_block;
    sizes_[g] = (num_tokens + tokens - 1) / tokens;
  }
  return sizes_;
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

Status SequenceState::begin_step(int64_t num_tokens, std::span<const int32_t> compressed_ids) {
  engram_ids_.resize(engram_ids_.empty() ? 0 : length_);  // a step that failed half way leaves ids behind
  engram_ids_.insert(engram_ids_.end(), compressed_ids.begin(), compressed_ids.end());
  if (!own_) return Status();
  drop_blocks();
  const std::span<const int64_t> needed = blocks_for(length_ + num_tokens);
  for (int g = 0; g < tables_.num_groups(); ++g) {
    while (tables_.size(g) < needed[g]) {
      DI_ASSIGN_OR_RETURN(std::byte* const block, own_->take(g));
      DI_RETURN_IF_ERROR(tables_.append(g, block));
    }
  }
  return Status();
}

void SequenceState::end_step(int64_t num_tokens) {
  length_ += num_tokens;
  longest_ = std::max(longest_, length_);
}

// Own blocks that only dropped rows are in. Not when a step ends: it may still run, and name them.
void SequenceState::drop_blocks() {
  for (int g = 0; g < tables_.num_groups(); ++g) {
    const CacheGroup& group = layout_->cache.groups[g];
    if (group.retention == CacheGroup::kKeepAll) continue;
    const int64_t begin = (longest_ - max_rollback_ - group.retention) / group.tokens_per_block;
    for (int64_t& first = first_block_[g]; first < begin; ++first) {
      own_->give_back(g, tables_.block(g, first));
      tables_.set(g, first, nullptr);
    }
  }
}

void SequenceState::place_block(int group, int64_t number, std::byte* block) {
  DI_CHECK(!own_, "block {} of group {} placed among own ones", number, group);
  tables_.set(group, number, block);
}

Status SequenceState::restart(int64_t length, std::span<const int32_t> compressed_ids, int64_t max_tokens) {
  DI_CHECK(!own_ && length <= max_tokens, "restart with {} tokens of {}", length, max_tokens);
  DI_RETURN_IF_ERROR(tables_.reset(blocks_for(max_tokens)));
  engram_ids_.reserve(max_tokens);
  length_ = longest_ = length;
  engram_ids_.assign(compressed_ids.begin(), compressed_ids.end());
  return Status();
}

}  // namespace deepinfer
