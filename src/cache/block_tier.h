// BlockTier: the blocks of all groups at one place (the device, or host memory) and the units that are there complete.
// Knows for each group which units would free a block of it by leaving, least recently used first, so that making room
// costs O(units that leave), whatever else is cached. Changed by the engine thread only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cache/block_pool.h"
#include "cache/cache_layout.h"
#include "cache/lru_heap.h"

namespace deepinfer {

// The blocks that a unit holds in one tier: of each group those with numbers [first, first + blocks.size()).
struct UnitBlocks {
  struct Group {
    int64_t first = 0;
    std::vector<BlockId> blocks;
  };
  std::vector<Group> groups;
};

class BlockTier {
 public:
  explicit BlockTier(const std::vector<int32_t>& num_blocks, bool debug);

  int num_groups() const { return static_cast<int>(groups_.size()); }
  const BlockPool& pool(int group) const { return groups_[group].pool; }

  // Uses: see BlockPool.
  BlockId acquire(int group) { return groups_[group].pool.acquire(); }
  void add_use(int group, BlockId block);
  void release_use(int group, BlockId block, int64_t last_step);
  void steps_done(int64_t step);

  // Units are small numbers. A unit that enters holds every block of `blocks`.
  void reserve_units(int32_t num_units);
  void enter(int32_t unit, UnitBlocks blocks, int64_t time);
  void leave(int32_t unit);
  bool holds(int32_t unit) const { return unit < static_cast<int32_t>(units_.size()) && units_[unit].is_here; }
  const UnitBlocks& blocks(int32_t unit) const;  // Requires: holds(unit)
  void touch(int32_t unit, int64_t time);

  // The unit to evict for a block of the group: of those that free one by leaving the one that was used longest ago. If
  // every block that could be had is shared between units, the oldest that holds such a block. -1: there is none.
  int32_t next_to_leave(int group);
  // Whether so many blocks of each group can be had if units leave.
  bool could_free(std::span<const int32_t> num_blocks) const;

  // Compares every count with the units that are here and the uses that the caller knows of (a group, a block), retired
  // blocks apart. Empty if all is well.
  std::string check(const std::vector<std::vector<int32_t>>& uses) const;

 private:
  struct Group {
    BlockPool pool;
    LruHeap sole_holders;  // units that free a block of the group by leaving
  };
  struct Unit {
    bool is_here = false;
    int64_t time = 0;
    UnitBlocks blocks;
    std::vector<int32_t> num_sole;      // a group: how many blocks only this unit holds
    std::vector<uint64_t> generations;  // a group: sum over its blocks at entry; differs if one was released under us
  };

  bool holds_unused_block(int32_t unit, int group) const;
  uint64_t sum_generations(int group, const UnitBlocks::Group& blocks) const;
  void sole_unit_changed(int group, int32_t before, int32_t after);

  std::vector<Group> groups_;
  std::vector<Unit> units_;
  LruHeap here_;  // the units that are here
  std::vector<int32_t> passed_over_;
};

}  // namespace deepinfer
