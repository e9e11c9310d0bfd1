// KvLayout: what a model remembers of a sequence, as blocks. Three kinds of groups:
//   window   a row a layer and position; only the last `sliding_window` positions are read again
//   tail     the compressors' (value | gate) rows of the open group, by position; only the last `ratio` are read again
//   global_R compressed rows and index keys of the KV sources of ratio R; all are read again
// A block of a group holds its rows for every layer that has them, one layer after the other. At the released widths
// every layer's rows begin at a multiple of 64 bytes in the block, whatever the format.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/cache_layout.h"
#include "model/kv_format.h"
#include "model/layer_plan.h"
#include "model/model_config.h"
#include "model/numerics.h"
#include "ops/row_table.h"

namespace deepinfer {

struct KvLayout {
  // Rows of one kind of one layer.
  struct Member {
    int group = 0;
    int64_t offset = 0;  // in a block, bytes
    ops::RowType type = ops::RowType::kF32;
    int64_t width = 0;
    int32_t block_shift = 0;  // rows in a block = 1 << block_shift
  };

  CacheLayout cache;
  KvFormat format = KvFormat::kBf16;
  std::vector<Member> members;
  // By layer: index into members, -1 if the layer has no such rows.
  std::vector<int> window, compressed, index_keys, open_group;

  // Requires: check_kv_format(format, numerics).
  static KvLayout make(const ModelConfig& config, Numerics numerics, KvFormat format = KvFormat::kBf16);

  // Bytes a token adds for good.
  double bytes_per_token() const;
  // At most so many more a sequence holds however long it is, in blocks of rows that are dropped when they are old.
  int64_t bytes_per_sequence() const;
};

}  // namespace deepinfer
