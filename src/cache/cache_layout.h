// CacheLayout: which kinds of rows a model keeps of a sequence, as the cache sees them: groups of equal blocks. What
// the bytes mean is the model's business (model/kv_layout.h).
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace deepinfer {

using BlockId = int32_t;
inline constexpr BlockId kNoBlock = -1;

struct CacheGroup {
  static constexpr int64_t kKeepAll = std::numeric_limits<int64_t>::max();

  std::string name;
  int32_t tokens_per_block = 0;  // positions a block covers; a power of two
  int64_t block_bytes = 0;
  int64_t retention = kKeepAll;  // only rows of the last so many positions are ever read again
};

struct CacheLayout {
  std::vector<CacheGroup> groups;
};

// The blocks of one sequence: block b of a group covers positions [b * tokens_per_block, (b + 1) * tokens_per_block).
struct BlockTable {
  struct Group {
    std::vector<BlockId> blocks;  // by block number; kNoBlock below `first`
    int64_t first = 0;            // blocks below were dropped
  };
  std::vector<Group> groups;
};

struct BlockCopy {
  int32_t group = 0;
  BlockId from = kNoBlock;
  BlockId to = kNoBlock;
};

}  // namespace deepinfer
