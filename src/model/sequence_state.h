// SequenceState: everything the model remembers of one sequence: its length, the blocks that hold its rows (see
// KvLayout), and the ids that Engram hashes look back to.
//
// All of it is rows by absolute position (or position / ratio), so that rolling back is moving the end: rows behind the
// new end are written again by whatever comes next. Blocks either belong to the state, which then takes and drops them
// itself, or are placed by a cache from outside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "model/kv_layout.h"
#include "ops/row_table.h"

namespace deepinfer {

// Blocks of memory of a state's own. Dropped ones are used again.
class OwnBlocks {
 public:
  explicit OwnBlocks(const CacheLayout& layout);
  std::byte* take(int group);
  void give_back(int group, std::byte* block) { free_[group].push_back(block); }
  int64_t bytes() const { return bytes_; }

 private:
  std::vector<int64_t> block_bytes_;
  std::vector<std::unique_ptr<std::byte[]>> owned_;
  std::vector<std::vector<std::byte*>> free_;
  int64_t bytes_ = 0;
};

class SequenceState {
 public:
  // With blocks of its own. max_rollback: how many tokens `roll_back` can undo at any moment; costs that many window
  // rows a layer.
  static SequenceState with_own_blocks(std::shared_ptr<const KvLayout> layout, int64_t max_rollback);
  // With blocks from outside: `place_block` before a step that writes into them. Never allocates up to max_tokens.
  static SequenceState with_placed_blocks(std::shared_ptr<const KvLayout> layout, int64_t max_tokens);

  int64_t length() const { return length_; }  // tokens processed
  int64_t bytes() const;                      // of its own

  // The last `num_tokens` tokens never happened. Refused past what was kept. (With placed blocks the owner of the
  // blocks answers for what was kept.)
  Status roll_back(int64_t num_tokens);

  // For the model. `begin_step` makes room for `num_tokens` further tokens and appends their compressed Engram ids (an
  // empty span without Engram); `end_step` makes them part of the sequence.
  void begin_step(int64_t num_tokens, std::span<const int32_t> compressed_ids);
  void end_step(int64_t num_tokens);
  const ops::RowTable& window(int layer) const { return tables_[layout_->window[layer]]; }
  const ops::RowTable& compressed(int layer) const { return tables_[layout_->compressed[layer]]; }
  const ops::RowTable& index_keys(int layer) const { return tables_[layout_->index_keys[layer]]; }
  const ops::RowTable& open_group(int layer) const { return tables_[layout_->open_group[layer]]; }
  // Compressed ids of all tokens, the current step's included.
  std::span<const int32_t> engram_history() const { return engram_ids_; }

  // For a cache. Block numbers as in BlockTable. `restart` makes it a sequence of `length` tokens whose rows lie in
  // blocks that are placed next, with room for max_tokens; compressed_ids as for begin_step.
  void place_block(int group, int64_t number, std::byte* block);
  void restart(int64_t length, std::span<const int32_t> compressed_ids, int64_t max_tokens);

 private:
  SequenceState(std::shared_ptr<const KvLayout> layout, int64_t max_rollback);
  void set_capacity(int64_t max_tokens);
  void refresh_tables();

  std::shared_ptr<const KvLayout> layout_;
  std::unique_ptr<OwnBlocks> own_;
  int64_t max_rollback_ = 0;
  int64_t length_ = 0;
  int64_t longest_ = 0;                          // what was dropped depends on the longest length so far
  std::vector<std::vector<std::byte*>> blocks_;  // [group][block number]
  std::vector<int64_t> first_block_;             // [group], own blocks below were dropped
  std::vector<ops::RowTable> tables_;            // [member]
  std::vector<int32_t> engram_ids_;
};

}  // namespace deepinfer
