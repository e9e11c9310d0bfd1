// What the cache asks others to move, as plain data: blocks between device and host memory (done by the executor, at
// the start of a step) and units between host memory and disk (done by transfer/tier_worker.h, in the background).
#pragma once

#include <cstdint>
#include <vector>

#include "cache/cache_layout.h"
#include "cache/content_key.h"

namespace deepinfer {

enum class Tier { kDevice, kHost, kDisk };

struct BlockTransfer {
  enum class Direction { kSave, kLoad };  // device to host, host to device

  int32_t group = 0;
  BlockId device_block = kNoBlock;
  BlockId host_block = kNoBlock;
  Direction direction = Direction::kSave;
};

struct DiskJob {
  enum class Kind { kSave, kLoad };
  struct Block {
    int32_t group = 0;
    BlockId host_block = kNoBlock;
    ContentKey key;
  };

  int64_t id = -1;
  Kind kind = Kind::kSave;
  ContentKey unit;
  uint64_t salt = 0;
  std::vector<int32_t> tokens;
  std::vector<Block> blocks;  // save: all of the unit; load: those that are wanted
};

struct DiskJobResult {
  int64_t id = -1;  // -1: not about a job
  bool ok = false;  // saved; or every block wanted is in its place
  int64_t bytes = 0;
  std::vector<ContentKey> gone;  // units that the disk does not have (any more)
};

}  // namespace deepinfer
