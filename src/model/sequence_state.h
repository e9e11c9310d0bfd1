// SequenceState: everything the model remembers of one sequence: its length, the blocks that hold its rows (see
// KvLayout), and the ids that Engram hashes look back to.
//
// All of it is rows by absolute position (or position / ratio), so that rolling back is moving the end: rows behind the
// new end are written again by whatever comes next. Blocks are device memory; they either belong to the state, which
// then takes and drops them itself, or are placed by a cache from outside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "device/stream.h"
#include "model/block_tables.h"
#include "model/kv_layout.h"
#include "ops/row_table.h"

namespace deepinfer {

// Blocks of memory of a state's own. Dropped ones are used again.
class OwnBlocks {
 public:
  OwnBlocks(Device& device, const CacheLayout& layout);
  Result<std::byte*> take(int group);
  void give_back(int group, std::byte* block) { free_[group].push_back(block); }
  int64_t bytes() const { return bytes_; }

 private:
  Device& device_;
  std::vector<int64_t> block_bytes_;
  std::vector<std::shared_ptr<std::byte>> owned_;
  std::vector<std::vector<std::byte*>> free_;
  int64_t bytes_ = 0;
};

class SequenceState {
 public:
  // With blocks of its own. max_rollback: how many tokens `roll_back` can undo at any moment; costs that many window
  // rows a layer.
  static SequenceState with_own_blocks(Device& device, std::shared_ptr<const KvLayout> layout, int64_t max_rollback);
  // With blocks from outside: `restart`, then `place_block` before a step that writes into them.
  static SequenceState with_placed_blocks(Device& device, std::shared_ptr<const KvLayout> layout);

  int64_t length() const { return length_; }  // tokens processed
  int64_t bytes() const;                      // of its own

  // The last `num_tokens` tokens never happened. Refused past what was kept. (With placed blocks the owner of the
  // blocks answers for what was kept.)
  Status roll_back(int64_t num_tokens);

  // For the model. `begin_step` makes room for `num_tokens` further tokens and appends their compressed Engram ids (an
  // empty span without Engram), when nothing runs that names the state; `end_step` makes them part of the sequence. A
  // step that begins and does not end leaves no trace. With placed blocks nothing is allocated.
  Status begin_step(int64_t num_tokens, std::span<const int32_t> compressed_ids);
  // Ids that `begin_step` was not given, before `end_step`.
  void append_history(std::span<const int32_t> compressed_ids) {
    engram_ids_.insert(engram_ids_.end(), compressed_ids.begin(), compressed_ids.end());
  }
  void end_step(int64_t num_tokens);
  void upload_tables(Stream& stream) { tables_.upload(stream); }
  std::byte* const* table_on_device(int group) const { return tables_.on_device(group); }
  // Compressed ids of all tokens, the current step's included.
  std::span<const int32_t> engram_history() const { return engram_ids_; }

  // The rows of a member of the layout as the host sees them: addresses, whatever may be read there.
  ops::RowTable rows(const KvLayout::Member& member) const {
    return {tables_.host(member.group), member.block_shift, member.type, member.width, member.offset};
  }
  const KvLayout& layout() const { return *layout_; }

  // For a cache. Block numbers as in BlockTable. `restart` makes it a sequence of `length` tokens whose rows lie in
  // blocks that are placed next, with room for max_tokens; compressed_ids as for begin_step. It allocates only beyond
  // the largest max_tokens so far.
  Status restart(int64_t length, std::span<const int32_t> compressed_ids, int64_t max_tokens);
  void place_block(int group, int64_t number, std::byte* block);

 private:
  SequenceState(Device& device, std::shared_ptr<const KvLayout> layout, int64_t max_rollback);
  void drop_blocks();
  std::span<const int64_t> blocks_for(int64_t num_tokens);

  std::shared_ptr<const KvLayout> layout_;
  std::unique_ptr<OwnBlocks> own_;
  int64_t max_rollback_ = 0;
  int64_t length_ = 0;
  int64_t longest_ = 0;  // what was dropped depends on the longest length so far
  BlockTables tables_;
  std::vector<int64_t> sizes_;        // [group], for `blocks_for`
  std::vector<int64_t> first_block_;  // [group], own blocks below were dropped
  std::vector<int32_t> engram_ids_;
};

}  // namespace deepinfer
