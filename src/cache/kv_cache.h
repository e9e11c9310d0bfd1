// KvCache: which block holds what, and which prefixes can be continued without computing them again. Integers only: it
// never touches bytes; where bytes must move it says so (BlockCopy).
//
// A *unit* is a whole prefix of `length` tokens that matches completely or not at all. It holds references to every
// block that a sequence of that length needs (all blocks of full groups, the retained ones of the others), so a
// sequence that adopts it continues exactly as if it had computed the prefix itself. Blocks are shared by reference
// count. Rows below a unit's length never change; the block that the length falls into may go on being filled by the
// sequence that published the unit, and is copied when another adopts it.
//
// *Tiers.* With host blocks, a unit that must leave the device is saved to host memory first; with `disk` it goes on
// from there to files, and outlives the process. Others move the bytes and wait for them; the protocol of a step is:
//   1. Results of disk jobs go to disk_job_done(), collected steps to steps_done().
//   2. Planning: match() also tells the longest unit stored elsewhere, if that is longer (stored_length). begin_load()
//      takes device blocks for it into an empty table; load_state() tells when the table can be used.
//   3. When the plan is complete, take_transfers() gives what the step must move before all else: first the transfers
//      in their order, then the BlockCopys in theirs, then the step proper; the device does all of it after the steps
//      planned before.
//   4. take_disk_jobs() gives what to hand to the disk's worker; a job it refuses is reported as done, not ok.
// A failed load is no error: the table is released and the tokens are computed. At start, add_stored_unit() names what
// the disk holds; before the end, save_all_units().
//
// Changed by the engine thread only. Nothing here waits or does I/O.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/cache_layout.h"
#include "cache/transfers.h"

namespace deepinfer {

struct KvCacheOptions {
  std::vector<int32_t> num_blocks;  // a group
  bool prefix_caching = true;       // off: nothing matches, nothing is published
  int64_t max_units = 1 << 16;
  bool debug = false;  // blocks are handed out in the order they became free, so that use after release is noticed
  std::vector<int32_t> num_host_blocks = {};  // a group; empty: no tier below the device
  bool disk = false;                          // units in host memory are written to disk as well; needs host blocks
  ContentKey fingerprint = {};                // cache_fingerprint(); needed for tiers
};

struct PrefixMatch {
  int64_t length = 0;         // tokens of the unit to adopt; 0: none
  int64_t branch_length = 0;  // longest prefix shared with anything seen before (>= length); a good place for a unit
  int64_t unit = -1;          // valid until the cache changes

  // The longest unit that only lower tiers have, if it is longer than `length`; 0: none.
  int64_t stored_length = 0;
  int64_t stored_unit = -1;
  Tier stored_tier = Tier::kDevice;  // the fastest that has it
};

enum class LoadState { kPending, kReady, kFailed };

struct KvCacheCounters {
  int64_t units = 0;
  int64_t published = 0;
  int64_t evicted = 0;
  int64_t adopted = 0;

  int64_t seen_tokens = 0;  // told by see(); those that no tier gave are the misses
  int64_t device_hit_tokens = 0;
  int64_t host_hit_tokens = 0;
  int64_t disk_hit_tokens = 0;
  int64_t host_saved_bytes = 0;
  int64_t host_loaded_bytes = 0;
  int64_t disk_saved_bytes = 0;
  int64_t disk_loaded_bytes = 0;
  int64_t host_saves_skipped = 0;  // units that left the device unsaved: no room
  int64_t disk_save_failures = 0;
  int64_t disk_load_failures = 0;
};

class KvCache {
 public:
  KvCache(CacheLayout layout, const KvCacheOptions& options);
  ~KvCache();

  const CacheLayout& layout() const;

  // An empty table with room for `max_tokens` positions, so that growing it never allocates.
  BlockTable make_table(int64_t max_tokens) const;

  // The longest unit of at most max_length tokens that is a prefix of `tokens`. Units of another salt are not seen.
  PrefixMatch match(std::span<const int32_t> tokens, int64_t max_length, uint64_t salt);

  // Remembers the tokens of a request that starts, so that a prompt which shares a prefix with them is told so
  // (branch_length) before their units are published.
  void see(std::span<const int32_t> tokens, uint64_t salt);

  // Fills an empty table with the unit's blocks; partly filled ones are copied (appended to `copies`, to be done before
  // anything of the table is read or written). False, and nothing changed, if there is no room for the copies.
  bool adopt(const PrefixMatch& match, BlockTable& table, std::vector<BlockCopy>& copies);

  // Makes the first tokens.size() tokens of the table's sequence a unit, if it is not one yet. All their rows must be
  // committed, and the rows that the groups retain must still be in the table.
  void publish(const BlockTable& table, std::span<const int32_t> tokens, uint64_t salt);

  // Makes room for rows [.., end): appends blocks, evicting units that were least recently used if need be. All or
  // nothing: false leaves the table as it was.
  bool reserve(BlockTable& table, int64_t end);

  // Whether `reserve` could give so many blocks of each group, evictions included.
  bool could_reserve(std::span<const int32_t> num_blocks) const;

  // Blocks whose rows a sequence that keeps `length` tokens, and may lose no more than that, never reads again go; a
  // step up to `last_step` may still name them.
  void drop_unneeded(BlockTable& table, int64_t length, int64_t last_step);

  // Gives up all blocks of the table and empties it.
  void release(BlockTable& table, int64_t last_step);

  // Steps up to `step` have been collected: what was retired for them is free again.
  void steps_done(int64_t step);

  void drop_all_units();

  // Begins to bring back match.stored_unit: fills an empty table with device blocks whose rows arrive later. The id of
  // the load; -1, and nothing changed, if there is no room. Requires: stored_length > 0.
  int64_t begin_load(const PrefixMatch& match, BlockTable& table);
  // Ready: rows are in place for the step being planned (its transfers bring them). Failed: release the table and
  // compute. Either answer ends the load: its id is not to be used again.
  LoadState load_state(int64_t load);
  // Ends a load whose outcome nobody waits for; the table is released like any other.
  void abandon_load(int64_t load);

  // Appends the transfers of `step`, whose plan is complete.
  void take_transfers(int64_t step, std::vector<BlockTransfer>& transfers);
  void take_disk_jobs(std::vector<DiskJob>& jobs);
  void disk_job_done(const DiskJobResult& result);
  // The disk has this unit.
  void add_stored_unit(std::span<const int32_t> tokens, uint64_t salt);
  // Saves units that only the device holds, as long as host memory lasts. Returns how many still wait: repeat after the
  // disk has taken what host memory holds.
  int64_t save_all_units();

  int32_t num_free_host(int group) const;
  int32_t num_free(int group) const;  // at once, without eviction
  int32_t capacity(int group) const;
  const KvCacheCounters& counters() const;

  // Every block is free, held by units, or held by the tables named: for tests. Empty string if all is well.
  std::string check(std::span<const BlockTable* const> tables) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace deepinfer
