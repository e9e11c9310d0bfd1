#include "cache/kv_cache.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "cache/kv_cache_state.h"

namespace deepinfer {

namespace {

bool is_empty(const BlockTable& table) {
  return std::all_of(table.groups.begin(), table.groups.end(), [](const auto& group) { return group.blocks.empty(); });
}

}  // namespace

KvCache::State::State(CacheLayout l, const KvCacheOptions& o)
    : layout(std::move(l)),
      options(o),
      device(o.num_blocks, o.debug),
      index(PrefixIndex::Limits{}),
      host(o.num_host_blocks, o.debug),
      contents(o.num_host_blocks) {
  DI_CHECK(layout.groups.size() == o.num_blocks.size(), "{} groups, {} numbers of blocks", layout.groups.size(),
           o.num_blocks.size());
  DI_CHECK(o.num_host_blocks.empty() || o.num_host_blocks.size() == o.num_blocks.size(),
           "{} groups, {} numbers of host blocks", o.num_blocks.size(), o.num_host_blocks.size());
  DI_CHECK(!o.disk || has_host(), "a disk tier needs host blocks to pass through");
  for (const CacheGroup& group : layout.groups) {
    const int32_t t = group.tokens_per_block;
    DI_CHECK(t > 0 && (t & (t - 1)) == 0, "group {}: {} tokens a block are no power of two", group.name, t);
    DI_CHECK(group.retention > 0, "group {}: retention {}", group.name, group.retention);
  }
  needed.resize(layout.groups.size());
  for (const int32_t blocks : o.num_blocks) copied_to.emplace_back(has_host() ? blocks : 0);
}

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
    host.reserve_units(unit + 1);
  } else {
    unit = free_units.back();
    free_units.pop_back();
  }
  units[unit].length = static_cast<int64_t>(tokens.size());
  units[unit].salt = salt;
  units[unit].node = index.insert(tokens, salt, unit);
  by_use.insert(unit, ++time);
  ++counters.units;
  return unit;
}

// The unit is forgotten. Jobs and loads that are under way hold what they need themselves.
void KvCache::State::drop_unit(int32_t unit) {
  if (device.holds(unit)) device.leave(unit);
  if (host.holds(unit)) host.leave(unit);
  Unit& u = units[unit];
  if (u.on_disk) by_key.erase(u.key);
  index.remove(u.node);
  u = {.generation = (u.generation + 1) & 0x7FFFFFFF};
  by_use.erase(unit);
  free_units.push_back(unit);
  --counters.units;
}

void KvCache::State::drop_if_nowhere(int32_t unit) {
  const Unit& u = units[unit];
  if (!device.holds(unit) && !host.holds(unit) && !u.on_disk && !u.is_saving && u.load < 0) drop_unit(unit);
}

void KvCache::State::touch(int32_t unit) {
  by_use.touch(unit, ++time);
  device.touch(unit, time);
  host.touch(unit, time);
}

void KvCache::State::evict_from_device(int32_t unit) {
  ++counters.evicted;
  if (has_host() && !host.holds(unit)) save(unit);
  device.leave(unit);
  drop_if_nowhere(unit);
}

void KvCache::State::add_uses(const UnitBlocks& blocks) {
  for (int g = 0; g < num_groups(); ++g)
    for (const BlockId block : blocks.groups[g].blocks) device.add_use(g, block);
}

void KvCache::State::release_uses(const UnitBlocks& blocks) {
  for (int g = 0; g < num_groups(); ++g)
    for (const BlockId block : blocks.groups[g].blocks) device.release_use(g, block, kAtOnce);
}

// Makes `needed` blocks free, or changes nothing.
bool KvCache::State::make_room() {
  if (!device.could_free(needed)) return false;
  for (int g = 0; g < num_groups(); ++g) {
    while (device.pool(g).num_free() < needed[g]) {
      const int32_t unit = device.next_to_leave(g);
      DI_CHECK(unit >= 0, "group {}: {} blocks are held by units alone, but no unit frees one", g,
               device.pool(g).num_held_by_units_only());
      evict_from_device(unit);
    }
  }
  return true;
}

KvCache::KvCache(CacheLayout layout, const KvCacheOptions& options)
    : state_(std::make_unique<State>(std::move(layout), options)) {}
KvCache::~KvCache() = default;

const CacheLayout& KvCache::layout() const { return state_->layout; }

BlockTable KvCache::make_table(int64_t max_tokens) const {
  BlockTable table;
  table.groups.resize(state_->num_groups());
  for (int g = 0; g < state_->num_groups(); ++g)
    table.groups[g].blocks.reserve(unit_blocks(state_->layout.groups[g], max_tokens).end);
  return table;
}

PrefixMatch KvCache::match(std::span<const int32_t> tokens, int64_t max_length, uint64_t salt) {
  PrefixMatch match;
  State& s = *state_;
  if (!s.options.prefix_caching) return match;
  match.branch_length = s.index.walk(tokens, salt, [&](int32_t unit, int64_t length) {
    if (length > max_length) return;
    if (s.device.holds(unit)) {
      match.length = length;
      match.unit = s.handle_of(unit);
    } else if (s.host.holds(unit) || s.units[unit].on_disk) {
      match.stored_length = length;
      match.stored_unit = s.handle_of(unit);
      match.stored_tier = s.host.holds(unit) ? Tier::kHost : Tier::kDisk;
    }
  });
  if (match.stored_length < match.length) match.stored_length = 0;
  return match;
}

void KvCache::see(std::span<const int32_t> tokens, uint64_t salt) {
  if (!state_->options.prefix_caching) return;
  state_->index.remember(tokens, salt);
  state_->counters.seen_tokens += static_cast<int64_t>(tokens.size());
}

bool KvCache::adopt(const PrefixMatch& match, BlockTable& table, std::vector<BlockCopy>& copies) {
  State& s = *state_;
  DI_CHECK(is_empty(table), "a table that is not empty adopts a unit");
  const int32_t unit = s.unit_of(match.unit);
  // While every block of the unit is in use, making room cannot evict it.
  const UnitBlocks& source = s.device.blocks(unit);
  s.add_uses(source);
  const int64_t length = s.units[unit].length;
  for (int g = 0; g < s.num_groups(); ++g) s.needed[g] = length % s.layout.groups[g].tokens_per_block != 0 ? 1 : 0;
  if (!s.make_room()) {
    s.release_uses(source);
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
    if (s.has_host()) {  // a transfer must not reach the source before the copy does
      s.open_copies.push_back(copies.back());
      s.copied_to[g][to.blocks.back()] = true;
    } else {
      s.device.release_use(g, from.blocks.back(), State::kAtOnce);
    }
  }
  s.touch(unit);
  ++s.counters.adopted;
  s.counters.device_hit_tokens += length;
  return true;
}

void KvCache::publish(const BlockTable& table, std::span<const int32_t> tokens, uint64_t salt) {
  State& s = *state_;
  if (!s.options.prefix_caching || tokens.empty()) return;
  const auto length = static_cast<int64_t>(tokens.size());
  const int32_t known = s.index.find(tokens, salt);
  if (known >= 0 && s.device.holds(known)) return s.touch(known);
  UnitBlocks held;
  held.groups.resize(s.num_groups());
  for (int g = 0; g < s.num_groups(); ++g) {
    const BlockTable::Group& from = table.groups[g];
    const auto [first, end] = unit_blocks(s.layout.groups[g], length);
    DI_CHECK(end <= static_cast<int64_t>(from.blocks.size()) && from.first <= first,
             "group {}: a unit of {} tokens needs blocks [{}, {}), the table has [{}, {})", s.layout.groups[g].name,
             length, first, end, from.first, from.blocks.size());
    held.groups[g].first = first;
    held.groups[g].blocks.assign(from.blocks.begin() + first, from.blocks.begin() + end);
  }
  const int32_t unit = known >= 0 ? known : s.new_unit(tokens, salt);
  s.device.enter(unit, std::move(held), s.time);
  s.touch(unit);
  ++s.counters.published;
}

bool KvCache::reserve(BlockTable& table, int64_t end) {
  State& s = *state_;
  for (int g = 0; g < s.num_groups(); ++g) {
    const int64_t missing =
        unit_blocks(s.layout.groups[g], end).end - static_cast<int64_t>(table.groups[g].blocks.size());
    s.needed[g] = static_cast<int32_t>(std::clamp<int64_t>(missing, 0, std::numeric_limits<int32_t>::max()));
  }
  if (!s.make_room()) return false;
  for (int g = 0; g < s.num_groups(); ++g)
    for (int32_t i = 0; i < s.needed[g]; ++i) table.groups[g].blocks.push_back(s.device.acquire(g));
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
    const int64_t end =
        std::min(unit_blocks(s.layout.groups[g], length).begin, static_cast<int64_t>(group.blocks.size()));
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

void KvCache::drop_all_units() {
  while (!state_->by_use.empty()) state_->drop_unit(state_->by_use.oldest());
}

int32_t KvCache::num_free_host(int group) const { return state_->has_host() ? state_->host.pool(group).num_free() : 0; }
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
    const State::Unit& u = s.units[unit];
    const bool is_somewhere = s.device.holds(unit) || s.host.holds(unit) || u.on_disk || u.is_saving || u.load >= 0;
    if (is_used != is_somewhere || is_used != s.by_use.contains(unit))
      return fmt::format("unit {} is known to some parts only", unit);
  }
  if (num_units != s.counters.units) return fmt::format("{} units, counted {}", num_units, s.counters.units);
  if (const std::string problem = s.check_tiers(uses); !problem.empty()) return problem;
  return s.device.check(uses);
}

}  // namespace deepinfer
