// KvCache: which block holds what, and which prefixes can be continued without computing them again. Integers only: it
// never touches bytes; where bytes must move it says so (BlockCopy).
//
// A *unit* is a whole prefix of `length` tokens that matches completely or not at all. It holds references to every
// block that a sequence of that length needs (all blocks of full groups, the retained ones of the others), so a
// sequence that adopts it continues exactly as if it had computed the prefix itself. Blocks are shared by reference
// count. Rows below a unit's length never change; the block that the length falls into may go on being filled by the
// sequence that published the unit, and is copied when another adopts it.
//
// Changed by the engine thread only. Nothing here waits or does I/O.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/cache_layout.h"

namespace deepinfer {

struct KvCacheOptions {
  std::vector<int32_t> num_blocks;  // a group
  bool prefix_caching = true;       // off: nothing matches, nothing is published
  int64_t max_units = 1 << 16;
  bool debug = false;  // blocks are handed out in the order they became free, so that use after release is noticed
};

struct PrefixMatch {
  int64_t length = 0;         // tokens of the unit to adopt; 0: none
  int64_t branch_length = 0;  // longest prefix shared with anything seen before (>= length); a good place for a unit
  int64_t unit = -1;          // valid until the cache changes
};

struct KvCacheCounters {
  int64_t units = 0;
  int64_t published = 0;
  int64_t evicted = 0;
  int64_t adopted = 0;
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

  // Remembers tokens that are being computed, so that a prompt which shares a prefix with them is told so
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
