#include "model/sequence_state.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer {
namespace {

constexpr int64_t kRowsPerBlock = int64_t{1} << RowStore::kBlockShift;

}  // namespace

RowStore::RowStore(ops::RowType type, int64_t width)
    : block_bytes_(kRowsPerBlock * width * (type == ops::RowType::kF32 ? 4 : 2)),
      table_{nullptr, kBlockShift, type, width} {}

void RowStore::reserve(int64_t end) {
  const int64_t num_blocks = (end + kRowsPerBlock - 1) / kRowsPerBlock;
  while (static_cast<int64_t>(blocks_.size()) < num_blocks) {
    if (free_.empty()) {
      owned_.push_back(std::make_unique<std::byte[]>(block_bytes_));
      free_.push_back(owned_.back().get());
    }
    blocks_.push_back(free_.back());
    free_.pop_back();
  }
  table_.blocks = blocks_.data();
}

void RowStore::drop_before(int64_t begin) {
  for (; first_block_ < begin / kRowsPerBlock && first_block_ < static_cast<int64_t>(blocks_.size()); ++first_block_) {
    free_.push_back(blocks_[first_block_]);
    blocks_[first_block_] = nullptr;
  }
}

SequenceState::SequenceState(const ModelConfig& config, Numerics numerics, int64_t max_rollback)
    : window_size_(config.sliding_window), max_rollback_(max_rollback) {
  DI_CHECK(max_rollback >= 0, "max_rollback {}", max_rollback);
  const ops::RowType type = Rounding::of(numerics).round_to_bf16 ? ops::RowType::kBf16 : ops::RowType::kF32;
  const LayerPlan plan = LayerPlan::make(config);
  source_of_layer_.assign(plan.layers.size(), -1);
  for (size_t layer = 0; layer < plan.layers.size(); ++layer) {
    windows_.emplace_back(type, config.head_dim);
    if (!plan.layers[layer].is_kv_source) continue;
    source_of_layer_[layer] = static_cast<int>(sources_.size());
    Source source{plan.layers[layer].compress_ratio, RowStore(type, config.head_dim),
                  RowStore(type, config.index_head_dim), RowStore()};
    if (source.ratio > 1) source.open_group = RowStore(ops::RowType::kF32, 2 * config.head_dim);
    sources_.push_back(std::move(source));
  }
}

int64_t SequenceState::bytes() const {
  int64_t total = static_cast<int64_t>(engram_ids_.capacity() * sizeof(int32_t));
  for (const RowStore& window : windows_) total += window.bytes();
  for (const Source& source : sources_) {
    total += source.compressed.bytes() + source.index_keys.bytes() + source.open_group.bytes();
  }
  return total;
}

Status SequenceState::roll_back(int64_t num_tokens) {
  const int64_t shortest = std::max<int64_t>(0, longest_ - max_rollback_);
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
  for (RowStore& window : windows_) window.reserve(end);
  for (Source& source : sources_) {
    source.compressed.reserve(end / source.ratio);
    source.index_keys.reserve(end / source.ratio);
    if (source.ratio > 1) source.open_group.reserve(end);
  }
}

void SequenceState::end_step(int64_t num_tokens) {
  length_ += num_tokens;
  longest_ = std::max(longest_, length_);
  const int64_t shortest = longest_ - max_rollback_;
  for (RowStore& window : windows_) window.drop_before(shortest - window_size_);
  for (Source& source : sources_) {
    if (source.ratio > 1) source.open_group.drop_before(shortest - source.ratio);
  }
}

}  // namespace deepinfer
