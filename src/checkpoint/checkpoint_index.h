// model.safetensors.index.json: which shard holds which tensor. Only the "weight_map" object is used.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer {

struct CheckpointIndex {
  struct Entry {
    std::string tensor;
    int shard = 0;  // index into `shards`
  };
  std::vector<std::string> shards;  // file names inside the model folder, ascending
  std::vector<Entry> entries;       // by tensor name, ascending
};

// `text` is the whole file; `file_name` is for messages.
Result<CheckpointIndex> parse_checkpoint_index(std::string_view file_name, std::string_view text);

}  // namespace deepinfer
