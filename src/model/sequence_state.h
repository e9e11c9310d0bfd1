// SequenceState: everything the model remembers of one sequence. Per layer the window rows; per KV source the
// compressed rows, the index keys and, for ratios above 1, the last tokens' (value, gate) rows of the compressor; and
// the ids that Engram hashes look back to.
//
// All of it is rows by absolute position (or position / ratio) in blocks, so that rolling back is moving the end: rows
// behind the new end are written again by whatever comes next. Rows that no rollback can need are dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "model/layer_plan.h"
#include "model/model_config.h"
#include "model/numerics.h"
#include "ops/row_table.h"

namespace deepinfer {

// Rows of one kind, in blocks of equal size. Blocks dropped at the front are used again at the back.
class RowStore {
 public:
  static constexpr int32_t kBlockShift = 6;

  RowStore() = default;
  RowStore(ops::RowType type, int64_t width);

  // Makes room for rows [0, end) as far as they were not dropped.
  void reserve(int64_t end);
  // Drops the blocks that hold only rows below `begin`.
  void drop_before(int64_t begin);
  // Valid until the next reserve or drop_before.
  const ops::RowTable& table() const { return table_; }
  int64_t bytes() const { return static_cast<int64_t>(owned_.size()) * block_bytes_; }

 private:
  int64_t block_bytes_ = 0;
  int64_t first_block_ = 0;  // blocks below are dropped
  std::vector<std::unique_ptr<std::byte[]>> owned_;
  std::vector<std::byte*> free_;
  std::vector<std::byte*> blocks_;
  ops::RowTable table_;
};

class SequenceState {
 public:
  // max_rollback: how many tokens `roll_back` can undo at any moment; costs that many window rows a layer.
  SequenceState(const ModelConfig& config, Numerics numerics, int64_t max_rollback);

  int64_t length() const { return length_; }  // tokens processed
  int64_t max_rollback() const { return max_rollback_; }
  int64_t bytes() const;

  // The last `num_tokens` tokens never happened. Refused past what was kept.
  Status roll_back(int64_t num_tokens);

  // For the model. `begin_step` makes room for ids.size() further tokens and appends their compressed Engram ids (empty
  // span of ids without Engram: pass num_tokens); `end_step` makes them part of the sequence.
  void begin_step(int64_t num_tokens, std::span<const int32_t> compressed_ids);
  void end_step(int64_t num_tokens);
  const RowStore& window(int layer) const { return windows_[layer]; }
  const RowStore& compressed(int layer) const { return sources_[source_of_layer_[layer]].compressed; }
  const RowStore& index_keys(int layer) const { return sources_[source_of_layer_[layer]].index_keys; }
  const RowStore& open_group(int layer) const { return sources_[source_of_layer_[layer]].open_group; }
  // Compressed ids of all tokens, the current step's included.
  std::span<const int32_t> engram_history() const { return engram_ids_; }

 private:
  struct Source {
    int64_t ratio = 1;
    RowStore compressed;
    RowStore index_keys;
    RowStore open_group;  // rows of [value | gate], fp32; only for ratios above 1
  };

  int64_t window_size_ = 0;
  int64_t max_rollback_ = 0;
  int64_t length_ = 0;
  int64_t longest_ = 0;  // what was dropped depends on the longest length so far
  std::vector<RowStore> windows_;
  std::vector<Source> sources_;
  std::vector<int> source_of_layer_;  // [layers], -1 for layers that are no KV source
  std::vector<int32_t> engram_ids_;
};

}  // namespace deepinfer
