#include "cache/block_tier.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"

namespace deepinfer {

BlockTier::BlockTier(const std::vector<int32_t>& num_blocks, bool debug) {
  for (const int32_t blocks : num_blocks) groups_.push_back({BlockPool(blocks, debug), {}});
}

void BlockTier::sole_unit_changed(int group, int32_t before, int32_t after) {
  if (before == after) return;
  LruHeap& heap = groups_[group].sole_holders;
  if (before >= 0 && --units_[before].num_sole[group] == 0) heap.erase(before);
  if (after >= 0 && units_[after].num_sole[group]++ == 0) heap.insert(after, units_[after].time);
}

void BlockTier::add_use(int group, BlockId block) {
  BlockPool& pool = groups_[group].pool;
  const int32_t before = pool.sole_unit(block);
  pool.add_use(block);
  sole_unit_changed(group, before, -1);
}

void BlockTier::release_use(int group, BlockId block, int64_t last_step) {
  BlockPool& pool = groups_[group].pool;
  pool.release_use(block, last_step);
  sole_unit_changed(group, -1, pool.sole_unit(block));
}

void BlockTier::steps_done(int64_t step) {
  for (int g = 0; g < num_groups(); ++g) {
    BlockPool& pool = groups_[g].pool;
    pool.steps_done(step, [&](BlockId block) { sole_unit_changed(g, -1, pool.sole_unit(block)); });
  }
}

void BlockTier::reserve_units(int32_t num_units) {
  if (static_cast<size_t>(num_units) <= units_.size()) return;
  units_.resize(num_units);
  for (Group& group : groups_) group.sole_holders.reserve(num_units);
  here_.reserve(num_units);
  passed_over_.reserve(num_units);
}

uint64_t BlockTier::sum_generations(int group, const UnitBlocks::Group& blocks) const {
  uint64_t sum = 0;
  for (size_t b = blocks.first; b < blocks.blocks.size(); ++b) sum += groups_[group].pool.generation(blocks.blocks[b]);
  return sum;
}

void BlockTier::enter(int32_t unit, UnitBlocks blocks, int64_t time) {
  DI_CHECK(!holds(unit), "unit {} is here already", unit);
  Unit& entry = units_[unit];
  entry.is_here = true;
  entry.time = time;
  here_.insert(unit, time);
  entry.blocks = std::move(blocks);
  entry.num_sole.assign(num_groups(), 0);
  entry.generations.resize(num_groups());
  for (int g = 0; g < num_groups(); ++g) {
    const UnitBlocks::Group& group = entry.blocks.groups[g];
    BlockPool& pool = groups_[g].pool;
    for (const BlockId block : group.blocks) {
      const int32_t before = pool.sole_unit(block);
      pool.add_unit(block, unit);
      sole_unit_changed(g, before, pool.sole_unit(block));
    }
    entry.generations[g] = sum_generations(g, group);
  }
}

void BlockTier::leave(int32_t unit) {
  DI_CHECK(holds(unit), "unit {} is not here", unit);
  Unit& entry = units_[unit];
  for (int g = 0; g < num_groups(); ++g) {
    const UnitBlocks::Group& group = entry.blocks.groups[g];
    DI_CHECK(entry.generations[g] == sum_generations(g, group), "a block of unit {} was freed under it", unit);
    BlockPool& pool = groups_[g].pool;
    for (const BlockId block : group.blocks) {
      const int32_t before = pool.sole_unit(block);
      pool.remove_unit(block, unit);
      sole_unit_changed(g, before, pool.sole_unit(block));
    }
  }
  here_.erase(unit);
  entry.is_here = false;
  entry.blocks = {};
}

const UnitBlocks& BlockTier::blocks(int32_t unit) const {
  DI_CHECK(holds(unit), "unit {} is not here", unit);
  return units_[unit].blocks;
}

void BlockTier::touch(int32_t unit, int64_t time) {
  if (!holds(unit)) return;
  units_[unit].time = time;
  here_.touch(unit, time);
  for (Group& group : groups_) group.sole_holders.touch(unit, time);
}

bool BlockTier::holds_unused_block(int32_t unit, int group) const {
  const std::vector<BlockId>& blocks = units_[unit].blocks.groups[group].blocks;
  const BlockPool& pool = groups_[group].pool;
  return std::any_of(blocks.rbegin(), blocks.rend(), [&](BlockId block) { return pool.num_uses(block) == 0; });
}

int32_t BlockTier::next_to_leave(int group) {
  const int32_t frees_one = groups_[group].sole_holders.oldest();
  if (frees_one >= 0 || groups_[group].pool.num_held_by_units_only() == 0) return frees_one;
  // Units whose blocks are all in use belong to running sequences: they were used lately, so few are passed over.
  int32_t unit = here_.oldest();
  for (; unit >= 0 && !holds_unused_block(unit, group); unit = here_.oldest()) {
    passed_over_.push_back(unit);
    here_.erase(unit);
  }
  for (const int32_t passed : passed_over_) here_.insert(passed, units_[passed].time);
  passed_over_.clear();
  return unit;
}

bool BlockTier::could_free(std::span<const int32_t> num_blocks) const {
  for (int g = 0; g < num_groups(); ++g) {
    const BlockPool& pool = groups_[g].pool;
    if (num_blocks[g] > pool.num_free() + pool.num_held_by_units_only()) return false;
  }
  return true;
}

std::string BlockTier::check(const std::vector<std::vector<int32_t>>& uses) const {
  for (int g = 0; g < num_groups(); ++g) {
    const BlockPool& pool = groups_[g].pool;
    if (!pool.is_consistent()) return fmt::format("group {}: the free list disagrees with the counts", g);
    std::vector<int32_t> held_by(pool.capacity(), 0);
    for (const Unit& unit : units_) {
      if (!unit.is_here) continue;
      const UnitBlocks::Group& group = unit.blocks.groups[g];
      for (const BlockId block : group.blocks) ++held_by[block];
    }
    for (BlockId block = 0; block < pool.capacity(); ++block) {
      const int32_t known = uses[g][block] + (pool.is_retired(block) ? 1 : 0);
      if (pool.num_uses(block) != known)
        return fmt::format("group {} block {}: {} uses, expected {}", g, block, pool.num_uses(block), known);
      if (pool.num_units(block) != held_by[block])
        return fmt::format("group {} block {}: {} units, expected {}", g, block, pool.num_units(block), held_by[block]);
    }
    for (size_t u = 0; u < units_.size(); ++u) {
      if (!units_[u].is_here) continue;
      const UnitBlocks::Group& group = units_[u].blocks.groups[g];
      int32_t num_sole = 0;
      for (const BlockId block : group.blocks) num_sole += pool.sole_unit(block) == static_cast<int32_t>(u);
      if (num_sole != units_[u].num_sole[g] || (num_sole > 0) != groups_[g].sole_holders.contains(u))
        return fmt::format("group {} unit {}: it alone holds {} blocks, the count says {}", g, u, num_sole,
                           units_[u].num_sole[g]);
    }
  }
  return "";
}

}  // namespace deepinfer
