// The insides of KvCache, shared by kv_cache.cc (the device) and kv_cache_tiers.cc (what is below).
#pragma once

#include <deque>
#include <unordered_map>
#include <vector>

#include "base/check.h"
#include "cache/block_tier.h"
#include "cache/content_key.h"
#include "cache/host_contents.h"
#include "cache/kv_cache.h"
#include "cache/lru_heap.h"
#include "cache/prefix_index.h"

namespace deepinfer {

struct KvCache::State {
  static constexpr int64_t kAtOnce = -1;  // a last step: no step can name the block

  struct Unit {
    int32_t node = -1;  // -1: the number is not in use
    uint32_t generation = 0;
    int64_t length = 0;
    uint64_t salt = 0;
    bool on_disk = false;
    bool is_saving = false;  // a job writes it to disk
    int64_t load = -1;       // the load under way
    ContentKey key;          // valid if on disk or saving
  };
  // A block on its way to the device; holds a use of the host block.
  struct Piece {
    int32_t group = 0;
    BlockId host = kNoBlock;
    BlockId device = kNoBlock;
    bool is_extra = false;  // not one of the unit's blocks: another table's own; the load holds a use of it as well
  };
  // A unit on its way to the device. While it is pending it holds a use of each device block, so that none of them is
  // handed out before what was asked for has arrived, whatever becomes of the tables.
  struct Load {
    int64_t unit = -1;  // handle
    int64_t length = 0;
    Tier from = Tier::kHost;
    LoadState state = LoadState::kPending;
    int32_t num_waiting = 0;
    UnitBlocks blocks;
    std::vector<Piece> pieces;
  };
  struct Job {
    int64_t unit = -1;                  // handle
    int64_t load = -1;                  // -1: a save
    std::vector<DiskJob::Block> saved;  // each with a use
  };
  struct WaitingSave {
    int64_t unit = -1;  // handle
    int64_t step = -1;  // in host memory once it is done; -1: its transfers were not taken yet
  };

  State(CacheLayout l, const KvCacheOptions& o);

  int num_groups() const { return static_cast<int>(layout.groups.size()); }
  bool has_host() const { return host.num_groups() > 0; }

  // Handles of units outlive them: a stale one is noticed by its generation.
  int64_t handle_of(int32_t unit) const {
    return static_cast<int64_t>(units[unit].generation) << 32 | static_cast<uint32_t>(unit);
  }
  // -1 if the unit is gone.
  int32_t find_unit(int64_t handle) const {
    const auto unit = static_cast<int32_t>(handle & 0xFFFFFFFF);
    if (handle < 0 || unit >= static_cast<int32_t>(units.size()) || units[unit].node < 0) return -1;
    return handle_of(unit) == handle ? unit : -1;
  }
  int32_t unit_of(int64_t handle) const {
    const int32_t unit = find_unit(handle);
    DI_CHECK(unit >= 0, "a match was used after the cache had changed");
    return unit;
  }

  // kv_cache.cc
  int32_t new_unit(std::span<const int32_t> tokens, uint64_t salt);
  void drop_unit(int32_t unit);
  void drop_if_nowhere(int32_t unit);
  void touch(int32_t unit);
  void evict_from_device(int32_t unit);
  bool make_room();
  void add_uses(const UnitBlocks& blocks);
  void release_uses(const UnitBlocks& blocks);

  // kv_cache_tiers.cc
  enum class HostRoom { kFreeOnly, kEvict };
  void save(int32_t unit, HostRoom room = HostRoom::kEvict);
  bool make_host_room(const std::vector<int32_t>& wanted, HostRoom room);
  UnitKeys keys_of(int32_t unit, std::vector<int32_t>& tokens) const;
  void start_disk_save(int32_t unit);
  bool plan_load(int32_t unit, int32_t base, Load& load, DiskJob& job);
  void find_sources(int32_t unit, int32_t base, Load& load, DiskJob& job);
  bool take_blocks(Load& load, DiskJob& job);
  void release_plan(Load& load);
  bool join_load(Load& load, BlockTable& table);
  void finish_load(int64_t id, bool ok);
  void emit(const Piece& piece, BlockTransfer::Direction direction);
  void forget_on_disk(int32_t unit);
  std::string check_tiers(std::vector<std::vector<int32_t>>& device_uses) const;

  CacheLayout layout;
  KvCacheOptions options;
  BlockTier device;
  PrefixIndex index;
  std::vector<Unit> units;
  std::vector<int32_t> free_units;
  LruHeap by_use;
  int64_t time = 0;
  std::vector<int32_t> needed;  // a group: blocks that the call under way must get
  KvCacheCounters counters;

  BlockTier host;
  HostContents contents;
  std::vector<BlockTransfer> transfers;      // of the step being planned; each with a use of its host block
  std::vector<BlockCopy> open_copies;        // of the step being planned; each with a use of its source
  std::vector<std::vector<bool>> copied_to;  // a group, a block: whether one of them is to fill it
  std::deque<WaitingSave> waiting_saves;
  std::unordered_map<int64_t, Load> loads;
  std::unordered_map<int64_t, Job> jobs;
  std::vector<DiskJob> new_jobs;
  std::unordered_map<ContentKey, int32_t, ContentKeyHash> by_key;  // units on disk
  int64_t next_id = 0;
};

}  // namespace deepinfer
