#include "cache/kv_cache.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "cache/block_tier.h"
#include "cache/lru_heap.h"
#include "cache/prefix_index.h"

namespace deepinfer {

namespace {

int64_t blocks_of(int64_t tokens, const CacheGroup& group) {
  return (tokens + group.tokens_per_block - 1) / group.tokens_per_block;
}

// The first block that a sequence of so many tokens may still read.
int64_t first_needed(int64_t length, const CacheGroup& group) {
  return length <= group.retention ? 0 : (length - group.retention) / group.tokens_per_block;
}

bool is_empty(const BlockTable& table) {
  return std::all_of(table.groups.begin(), table.groups.end(), [](const auto& group) { return group.blocks.empty(); });
}

constexpr int64_t kAtOnce = -1;  // no step can name the block

}  // namespace

struct KvCache::State {
  struct Unit {
    int32_t node = -1;  // -1: the number is not in use
    uint32_t generation = 0;
    int64_t length = 0;
  };

  State(CacheLayout l, const KvCacheOptions& o)
      : layout(std::move(l)), options(o), device(o.num_blocks, o.debug), index(PrefixIndex::Limits{}) {
    DI_CHECK(layout.groups.size() == o.num_blocks.size(), "{} groups, {} numbers of blocks", layout.groups.size(),
             o.num_blocks.size());
    for (const CacheGroup& group : layout.groups) {
      const int32_t t = group.tokens_per_block;
      DI_CHECK(t > 0 && (t & (t - 1)) == 0, "group {}: {} tokens a block are no power of two", group.name, t);
      DI_CHECK(group.retention > 0, "group {}: retention {}", group.name, group.retention);
    }
    needed.resize(layout.groups.size());
  }

  int num_groups() const { return static_cast<int>(layout.groups.size()); }

  // Handles of units outlive them: a stale one is noticed by its generation.
  int64_t handle_of(int32_t unit) const {
    return static_cast<int64_t>(units[unit].generation) << 32 | static_cast<uint32_t>(unit);
  }
  int32_t unit_of(int64_t handle) const {
    const auto unit = static_cast<int32_t>(handle & 0xFFFFFFFF);
    DI_CHECK(
        handle >= 0 && unit < static_cast<int32_t>(units.size()) && units[unit].node >= 0 && handle_of(unit) == handle,
        "a match was used after the cache had changed");
    return unit;
  }

  int32_t new_unit(std::span<const int32_t> tokens, uint64_t salt);
  void drop_unit(int32_t unit);
  void touch(int32_t unit);
  void evict(int32_t unit);
  bool make_room();
  void append_blocks(BlockTable& table);

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
};

int32_t KvCache::State::new_unit(std::span<const int32_t> tokens, uint64_t salt) {
  while (by_use.size() >= std::max<int64_t>(options.max_units, 1)) {
    ++counters.evicted;
    drop_unit(by_use.oldest());
  }
  int32_t unit;
  if (free_units.empty()) {
    unit = static_cast<int32_t>(units.size());
    units.emplace_back();
    free_units.reserve(units.capacity());
    by_use.reserve(unit + 1);
    device.reserve_units(unit + 1);
  } else {
    unit = free_units.back();
    free_units.pop_back();
  }
  units[unit].length = static_cast<int64_t>(tokens.size());
  units[unit].node = index.insert(tokens, salt, unit);
  by_use.insert(unit, ++time);
  ++counters.units;
  return unit;
}

void KvCache::State::drop_unit(int32_t unit) {
  if (device.holds(unit)) device.leave(unit);
  index.remove(units[unit].node);
  units[unit].node = -1;
  units[unit].generation = (units[unit].generation + 1) & 0x7FFFFFFF;
  by_use.erase(unit);
  free_units.push_back(unit);
  --counters.units;
}

void KvCache::State::touch(int32_t unit) {
  by_use.touch(unit, ++time);
  device.touch(unit, time);
}

void KvCache::State::evict(int32_t unit) {
  ++counters.evicted;
  drop_unit(unit);
}

// Makes `needed` blocks free, or changes nothing.
bool KvCache::State::make_room() {
  if (!device.could_free(needed)) return false;
  for (int g = 0; g < num_groups(); ++g) {
    while (device.pool(g).num_free() < needed[g]) {
      const int32_t unit = device.next_to_leave(g);
      DI_CHECK(unit >= 0, "group {}: {} blocks are held by units alone, but no unit frees one", g,
               device.pool(g).num_held_by_units_only());
      evict(unit);
    }
  }
  return true;
}

void KvCache::State::append_blocks(BlockTable& table) {
  for (int g = 0; g < num_groups(); ++g)
    for (int32_t i = 0; i < needed[g]; ++i) table.groups[g].blocks.push_back(device.acquire(g));
}

KvCache::KvCache(CacheLayout layout, const KvCacheOptions& options)
    : state_(std::make_unique<State>(std::move(layout), options)) {}
KvCache::~KvCache() = default;

const CacheLayout& KvCache::layout() const { return state_->layout; }

BlockTable KvCache::make_table(int64_t max_tokens) const {
  BlockTable table;
  table.groups.resize(state_->num_groups());
  for (int g = 0; g < state_->num_groups(); ++g)
    table.groups[g].blocks.reserve(blocks_of(max_tokens, state_->layout.groups[g]));
  return table;
}

PrefixMatch KvCache::match(std::span<const int32_t> tokens, int64_t max_length, uint64_t salt) {
  PrefixMatch match;
  State& s = *state_;
  if (!s.options.prefix_caching) return match;
  match.branch_length = s.index.walk(tokens, salt, [&](int32_t unit, int64_t length) {
    if (length > max_length) return;
    match.length = length;
    match.unit = s.handle_of(unit);
  });
  return match;
}

void KvCache::see(std::span<const int32_t> tokens, uint64_t salt) {
  if (state_->options.prefix_caching) state_->index.remember(tokens, salt);
}

bool KvCache::adopt(const PrefixMatch& match, BlockTable& table, std::vector<BlockCopy>& copies) {
  State& s = *state_;
  DI_CHECK(is_empty(table), "a table that is not empty adopts a unit");
  const int32_t unit = s.unit_of(match.unit);
  // While every block of the unit is in use, making room cannot evict it.
  const UnitBlocks& source = s.device.blocks(unit);
  for (int g = 0; g < s.num_groups(); ++g) {
    for (const BlockId block : source.groups[g].blocks) s.device.add_use(g, block);
    s.needed[g] = s.units[unit].length % s.layout.groups[g].tokens_per_block != 0 ? 1 : 0;
  }
  if (!s.make_room()) {
    for (int g = 0; g < s.num_groups(); ++g)
      for (const BlockId block : source.groups[g].blocks) s.device.release_use(g, block, kAtOnce);
    return false;
  }
  for (int g = 0; g < s.num_groups(); ++g) {
    const UnitBlocks::Group& from = source.groups[g];
    BlockTable::Group& to = table.groups[g];
    to.first = from.first;
    to.blocks.assign(from.first, kNoBlock);
    to.blocks.insert(to.blocks.end(), from.blocks.begin(), from.blocks.end());
    if (s.needed[g] == 0) continue;
    to.blocks.back() = s.device.acquire(g);
    copies.push_back({g, from.blocks.back(), to.blocks.back()});
    s.device.release_use(g, from.blocks.back(), kAtOnce);
  }
  s.touch(unit);
  ++s.counters.adopted;
  return true;
}

void KvCache::publish(const BlockTable& table, std::span<const int32_t> tokens, uint64_t salt) {
  State& s = *state_;
  if (!s.options.prefix_caching || tokens.empty()) return;
  const auto length = static_cast<int64_t>(tokens.size());
  if (const int32_t known = s.index.find(tokens, salt); known >= 0) return s.touch(known);
  UnitBlocks held;
  held.groups.resize(s.num_groups());
  for (int g = 0; g < s.num_groups(); ++g) {
    const BlockTable::Group& from = table.groups[g];
    const int64_t first = first_needed(length, s.layout.groups[g]);
    const int64_t end = blocks_of(length, s.layout.groups[g]);
    DI_CHECK(end <= static_cast<int64_t>(from.blocks.size()) && from.first <= first,
             "group {}: a unit of {} tokens needs blocks [{}, {}), the table has [{}, {})", s.layout.groups[g].name,
             length, first, end, from.first, from.blocks.size());
    held.groups[g].first = first;
    held.groups[g].blocks.assign(from.blocks.begin() + first, from.blocks.begin() + end);
  }
  const int32_t unit = s.new_unit(tokens, salt);
  s.device.enter(unit, std::move(held), s.time);
  ++s.counters.published;
}

bool KvCache::reserve(BlockTable& table, int64_t end) {
  State& s = *state_;
  for (int g = 0; g < s.num_groups(); ++g) {
    const int64_t missing = blocks_of(end, s.layout.groups[g]) - static_cast<int64_t>(table.groups[g].blocks.size());
    s.needed[g] = static_cast<int32_t>(std::clamp<int64_t>(missing, 0, std::numeric_limits<int32_t>::max()));
  }
  if (!s.make_room()) return false;
  s.append_blocks(table);
  return true;
}

bool KvCache::could_reserve(std::span<const int32_t> num_blocks) const {
  DI_CHECK(num_blocks.size() == state_->layout.groups.size(), "{} numbers for {} groups", num_blocks.size(),
           state_->layout.groups.size());
  return state_->device.could_free(num_blocks);
}

void KvCache::drop_unneeded(BlockTable& table, int64_t length, int64_t last_step) {
  State& s = *state_;
  for (int g = 0; g < s.num_groups(); ++g) {
    BlockTable::Group& group = table.groups[g];
    const int64_t end = std::min(first_needed(length, s.layout.groups[g]), static_cast<int64_t>(group.blocks.size()));
    for (; group.first < end; ++group.first)
      s.device.release_use(g, std::exchange(group.blocks[group.first], kNoBlock), last_step);
  }
}

void KvCache::release(BlockTable& table, int64_t last_step) {
  State& s = *state_;
  for (int g = 0; g < s.num_groups(); ++g) {
    BlockTable::Group& group = table.groups[g];
    for (size_t b = group.first; b < group.blocks.size(); ++b) s.device.release_use(g, group.blocks[b], last_step);
    group.blocks.clear();
    group.first = 0;
  }
}

void KvCache::steps_done(int64_t step) { state_->device.steps_done(step); }

void KvCache::drop_all_units() {
  while (!state_->by_use.empty()) state_->drop_unit(state_->by_use.oldest());
}

int32_t KvCache::num_free(int group) const { return state_->device.pool(group).num_free(); }
int32_t KvCache::capacity(int group) const { return state_->device.pool(group).capacity(); }
const KvCacheCounters& KvCache::counters() const { return state_->counters; }

std::string KvCache::check(std::span<const BlockTable* const> tables) const {
  const State& s = *state_;
  std::vector<std::vector<int32_t>> uses(s.num_groups());
  for (int g = 0; g < s.num_groups(); ++g) {
    uses[g].assign(capacity(g), 0);
    for (const BlockTable* table : tables) {
      const BlockTable::Group& group = table->groups[g];
      for (size_t b = 0; b < group.blocks.size(); ++b) {
        const BlockId block = group.blocks[b];
        if ((block == kNoBlock) != (static_cast<int64_t>(b) < group.first))
          return fmt::format("group {}: block {} of a table is {}, its first is {}", g, b, block, group.first);
        if (block != kNoBlock) ++uses[g][block];
      }
    }
  }
  if (!s.index.is_consistent()) return "the prefix index is damaged";
  int64_t num_units = 0;
  for (size_t unit = 0; unit < s.units.size(); ++unit) {
    const bool is_used = s.units[unit].node >= 0;
    num_units += is_used;
    if (is_used != s.device.holds(unit) || is_used != s.by_use.contains(unit))
      return fmt::format("unit {} is known to some parts only", unit);
  }
  if (num_units != s.counters.units) return fmt::format("{} units, counted {}", num_units, s.counters.units);
  return s.device.check(uses);
}

}  // namespace deepinfer
