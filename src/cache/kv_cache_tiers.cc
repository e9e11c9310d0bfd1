// The tiers below the device: saving what leaves it, bringing it back, and the jobs for the disk.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "cache/kv_cache_state.h"

namespace deepinfer {

namespace {

void fill_table(const UnitBlocks& blocks, BlockTable& table) {
  for (size_t g = 0; g < blocks.groups.size(); ++g) {
    const UnitBlocks::Group& from = blocks.groups[g];
    BlockTable::Group& to = table.groups[g];
    DI_CHECK(to.blocks.empty(), "a unit is loaded into a table that is not empty");
    to.first = from.first;
    to.blocks.assign(from.first, kNoBlock);
    to.blocks.insert(to.blocks.end(), from.blocks.begin(), from.blocks.end());
  }
}

}  // namespace

UnitKeys KvCache::State::keys_of(int32_t unit, std::vector<int32_t>& tokens) const {
  tokens.clear();
  index.append_tokens(units[unit].node, tokens);
  return unit_keys(layout, options.fingerprint, units[unit].salt, tokens);
}

void KvCache::State::emit(const Piece& piece, BlockTransfer::Direction direction) {
  transfers.push_back({piece.group, piece.device, piece.host, direction});
  (direction == BlockTransfer::Direction::kSave ? counters.host_saved_bytes : counters.host_loaded_bytes) +=
      layout.groups[piece.group].block_bytes;
}

bool KvCache::State::make_host_room(const std::vector<int32_t>& wanted, HostRoom room) {
  if (!host.could_free(wanted)) return false;
  for (int g = 0; g < num_groups(); ++g) {
    while (host.pool(g).num_free() < wanted[g]) {
      const int32_t unit = room == HostRoom::kEvict ? host.next_to_leave(g) : -1;
      if (unit < 0) return false;
      host.leave(unit);
      drop_if_nowhere(unit);
    }
  }
  return true;
}

// Puts the unit into host memory, by transfers for those of its blocks whose content is not there yet.
void KvCache::State::save(int32_t unit, HostRoom room) {
  const UnitBlocks& source = device.blocks(unit);
  std::vector<int32_t> tokens;
  const UnitKeys keys = keys_of(unit, tokens);
  UnitBlocks held;
  std::vector<int32_t> wanted(num_groups());
  bool is_whole = true;
  for (int g = 0; g < num_groups(); ++g) {
    const std::vector<BlockId>& blocks = source.groups[g].blocks;
    UnitBlocks::Group& group = held.groups.emplace_back();
    group.first = source.groups[g].first;
    for (size_t b = 0; b < blocks.size(); ++b) {
      // Rows that only a copy of this very step will bring cannot be saved before it.
      if (copied_to[g][blocks[b]]) is_whole = false;
      const BlockId found = contents.find(g, keys.groups[g].blocks[b], host.pool(g));
      if (found != kNoBlock) host.add_use(g, found);
      wanted[g] += found == kNoBlock;
      group.blocks.push_back(found);
    }
  }
  const bool has_room = is_whole && make_host_room(wanted, room);
  if (!has_room) ++counters.host_saves_skipped;
  std::vector<std::pair<int, BlockId>> found;
  for (int g = 0; g < num_groups(); ++g) {
    for (size_t b = 0; b < held.groups[g].blocks.size(); ++b) {
      BlockId& block = held.groups[g].blocks[b];
      if (block != kNoBlock) {
        found.emplace_back(g, block);
      } else if (has_room) {
        block = host.acquire(g);
        contents.set(g, block, keys.groups[g].blocks[b], host.pool(g));
        emit({g, block, source.groups[g].blocks[b]}, BlockTransfer::Direction::kSave);
      }
    }
  }
  if (has_room) {
    host.enter(unit, std::move(held), ++time);
    if (options.disk && !units[unit].on_disk && !units[unit].is_saving) waiting_saves.push_back({handle_of(unit), -1});
  }
  for (const auto& [g, block] : found) host.release_use(g, block, kAtOnce);
}

void KvCache::State::start_disk_save(int32_t unit) {
  DiskJob job;
  const UnitKeys keys = keys_of(unit, job.tokens);
  job.id = next_id++;
  job.kind = DiskJob::Kind::kSave;
  job.unit = keys.unit;
  job.salt = units[unit].salt;
  const UnitBlocks& held = host.blocks(unit);
  for (int g = 0; g < num_groups(); ++g) {
    for (size_t b = 0; b < held.groups[g].blocks.size(); ++b) {
      host.add_use(g, held.groups[g].blocks[b]);
      job.blocks.push_back({g, held.groups[g].blocks[b], keys.groups[g].blocks[b]});
    }
  }
  units[unit].key = keys.unit;
  units[unit].is_saving = true;
  jobs[job.id] = {handle_of(unit), -1, job.blocks};
  new_jobs.push_back(std::move(job));
}

void KvCache::State::forget_on_disk(int32_t unit) {
  units[unit].on_disk = false;
  by_key.erase(units[unit].key);
  drop_if_nowhere(unit);
}

// Where each block of the unit comes from: the device, if a shorter unit of the same tokens (base) has it; host memory;
// or the disk. Takes a use of whatever is found.
void KvCache::State::find_sources(int32_t unit, int32_t base, Load& load, DiskJob& job) {
  const bool is_in_host = host.holds(unit);
  UnitKeys keys;
  if (!is_in_host) keys = keys_of(unit, job.tokens);
  job.unit = keys.unit;
  job.salt = units[unit].salt;
  for (int g = 0; g < num_groups(); ++g) {
    const int64_t rows = layout.groups[g].tokens_per_block;
    const BlockRange range = unit_blocks(layout.groups[g], units[unit].length);
    UnitBlocks::Group& group = load.blocks.groups.emplace_back();
    group.first = range.begin;
    for (int64_t b = range.begin; b < range.end; ++b) {
      if (base >= 0 && (b + 1) * rows <= units[base].length) {
        const UnitBlocks::Group& known = device.blocks(base).groups[g];
        if (b >= known.first && b < known.first + static_cast<int64_t>(known.blocks.size())) {
          group.blocks.push_back(known.blocks[b - known.first]);
          device.add_use(g, group.blocks.back());
          continue;
        }
      }
      group.blocks.push_back(kNoBlock);
      const BlockId in_host = is_in_host ? host.blocks(unit).groups[g].blocks[b - range.begin]
                                         : contents.find(g, keys.groups[g].blocks[b - range.begin], host.pool(g));
      load.pieces.push_back({g, in_host, kNoBlock});
      if (in_host != kNoBlock) {
        host.add_use(g, in_host);
      } else {
        job.blocks.push_back({g, kNoBlock, keys.groups[g].blocks[b - range.begin]});
      }
    }
  }
}

// Host blocks for what the disk must bring, device blocks for all that is not there.
bool KvCache::State::take_blocks(Load& load, DiskJob& job) {
  std::vector<int32_t> wanted(num_groups());
  for (const DiskJob::Block& block : job.blocks) ++wanted[block.group];
  if (!make_host_room(wanted, HostRoom::kEvict)) return false;
  auto block = job.blocks.begin();
  for (Piece& piece : load.pieces)
    if (piece.host == kNoBlock) block++->host_block = piece.host = host.acquire(piece.group);
  std::fill(needed.begin(), needed.end(), 0);
  for (const Piece& piece : load.pieces) ++needed[piece.group];
  if (!make_room()) return false;
  auto piece = load.pieces.begin();
  for (int g = 0; g < num_groups(); ++g)
    for (BlockId& device_block : load.blocks.groups[g].blocks)
      if (device_block == kNoBlock) device_block = piece++->device = device.acquire(g);
  return true;
}

void KvCache::State::release_plan(Load& load) {
  for (int g = 0; g < num_groups(); ++g)
    for (const BlockId block : load.blocks.groups[g].blocks)
      if (block != kNoBlock) device.release_use(g, block, kAtOnce);
  for (const Piece& piece : load.pieces)
    if (piece.host != kNoBlock) host.release_use(piece.group, piece.host, kAtOnce);
}

bool KvCache::State::plan_load(int32_t unit, int32_t base, Load& load, DiskJob& job) {
  find_sources(unit, base, load, job);
  units[unit].load = next_id;  // making room may evict it from host memory, but must not forget it
  const bool has_room = take_blocks(load, job);
  units[unit].load = -1;
  if (!has_room) {
    release_plan(load);
    drop_if_nowhere(unit);
  }
  return has_room;
}

// A second sequence wants what is on its way: it shares the full blocks and gets its own of the partly filled ones.
bool KvCache::State::join_load(Load& load, BlockTable& table) {
  for (int g = 0; g < num_groups(); ++g) needed[g] = load.length % layout.groups[g].tokens_per_block != 0 ? 1 : 0;
  if (!make_room()) return false;
  fill_table(load.blocks, table);
  for (int g = 0; g < num_groups(); ++g) {
    std::vector<BlockId>& blocks = table.groups[g].blocks;
    if (needed[g] > 0) {
      const auto piece = std::find_if(load.pieces.begin(), load.pieces.end(),
                                      [&](const Piece& p) { return p.group == g && p.device == blocks.back(); });
      DI_CHECK(piece != load.pieces.end(), "group {}: a partly filled block is not loaded", g);
      blocks.back() = device.acquire(g);
      host.add_use(g, piece->host);
      device.add_use(g, blocks.back());
      load.pieces.push_back({g, piece->host, blocks.back(), true});
    }
    for (size_t b = table.groups[g].first; b + needed[g] < blocks.size(); ++b) device.add_use(g, blocks[b]);
  }
  ++load.num_waiting;
  return true;
}

// The bytes are in host memory, or will never be.
void KvCache::State::finish_load(int64_t id, bool ok) {
  Load& load = loads.at(id);
  const int32_t unit = find_unit(load.unit);
  if (unit >= 0) units[unit].load = -1;
  load.state = ok ? LoadState::kReady : LoadState::kFailed;
  for (const Piece& piece : load.pieces) {
    if (ok) {
      emit(piece, BlockTransfer::Direction::kLoad);
    } else {
      host.release_use(piece.group, piece.host, kAtOnce);
    }
    if (piece.is_extra) device.release_use(piece.group, piece.device, kAtOnce);
  }
  if (unit >= 0) {
    if (ok && !device.holds(unit)) device.enter(unit, load.blocks, time);
    touch(unit);
    drop_if_nowhere(unit);
  }
  release_uses(load.blocks);
  if (load.num_waiting == 0) loads.erase(id);
}

int64_t KvCache::begin_load(const PrefixMatch& match, BlockTable& table) {
  State& s = *state_;
  DI_CHECK(match.stored_length > 0, "the match names nothing that is stored");
  const int32_t unit = s.unit_of(match.stored_unit);
  if (const int64_t pending = s.units[unit].load; pending >= 0)
    return s.join_load(s.loads.at(pending), table) ? pending : -1;

  State::Load load{.unit = match.stored_unit, .length = s.units[unit].length, .num_waiting = 1};
  DiskJob job;
  if (!s.plan_load(unit, match.unit < 0 ? -1 : s.unit_of(match.unit), load, job)) return -1;
  fill_table(load.blocks, table);
  s.add_uses(load.blocks);
  const int64_t id = s.next_id++;
  load.from = job.blocks.empty() ? Tier::kHost : Tier::kDisk;
  s.units[unit].load = id;
  s.loads.emplace(id, std::move(load));
  if (job.blocks.empty()) {
    s.finish_load(id, true);
  } else {
    job.id = s.next_id++;
    job.kind = DiskJob::Kind::kLoad;
    s.jobs[job.id] = {match.stored_unit, id, {}};
    s.new_jobs.push_back(std::move(job));
  }
  return id;
}

LoadState KvCache::load_state(int64_t id) {
  State& s = *state_;
  const auto found = s.loads.find(id);
  DI_CHECK(found != s.loads.end(), "load {} has ended", id);
  State::Load& load = found->second;
  const LoadState state = load.state;
  if (state == LoadState::kPending) return state;
  if (state == LoadState::kReady)
    (load.from == Tier::kHost ? s.counters.host_hit_tokens : s.counters.disk_hit_tokens) += load.length;
  if (--load.num_waiting == 0) s.loads.erase(found);
  return state;
}

void KvCache::abandon_load(int64_t id) {
  const auto found = state_->loads.find(id);
  DI_CHECK(found != state_->loads.end(), "load {} has ended", id);
  if (--found->second.num_waiting == 0 && found->second.state != LoadState::kPending) state_->loads.erase(found);
}

void KvCache::take_transfers(int64_t step, std::vector<BlockTransfer>& transfers) {
  State& s = *state_;
  for (const BlockTransfer& transfer : s.transfers) s.host.release_use(transfer.group, transfer.host_block, step);
  transfers.insert(transfers.end(), s.transfers.begin(), s.transfers.end());
  s.transfers.clear();
  for (const BlockCopy& copy : s.open_copies) {
    s.device.release_use(copy.group, copy.from, State::kAtOnce);
    s.copied_to[copy.group][copy.to] = false;
  }
  s.open_copies.clear();
  for (auto save = s.waiting_saves.rbegin(); save != s.waiting_saves.rend() && save->step < 0; ++save)
    save->step = step;
}

void KvCache::steps_done(int64_t step) {
  State& s = *state_;
  s.device.steps_done(step);
  s.host.steps_done(step);
  while (!s.waiting_saves.empty() && s.waiting_saves.front().step >= 0 && s.waiting_saves.front().step <= step) {
    const int32_t unit = s.find_unit(s.waiting_saves.front().unit);
    s.waiting_saves.pop_front();
    if (unit >= 0 && s.host.holds(unit) && !s.units[unit].on_disk && !s.units[unit].is_saving) s.start_disk_save(unit);
  }
}

void KvCache::take_disk_jobs(std::vector<DiskJob>& jobs) {
  std::move(state_->new_jobs.begin(), state_->new_jobs.end(), std::back_inserter(jobs));
  state_->new_jobs.clear();
}

void KvCache::disk_job_done(const DiskJobResult& result) {
  State& s = *state_;
  for (const ContentKey& key : result.gone)
    if (const auto known = s.by_key.find(key); known != s.by_key.end()) s.forget_on_disk(known->second);
  if (result.id < 0) return;
  const auto found = s.jobs.find(result.id);
  DI_CHECK(found != s.jobs.end(), "job {} is done twice, or was never given", result.id);
  const State::Job job = std::move(found->second);
  s.jobs.erase(found);
  if (job.load >= 0) {
    (result.ok ? s.counters.disk_loaded_bytes : s.counters.disk_load_failures) += result.ok ? result.bytes : 1;
    return s.finish_load(job.load, result.ok);
  }
  (result.ok ? s.counters.disk_saved_bytes : s.counters.disk_save_failures) += result.ok ? result.bytes : 1;
  for (const DiskJob::Block& block : job.saved) s.host.release_use(block.group, block.host_block, State::kAtOnce);
  const int32_t unit = s.find_unit(job.unit);
  if (unit < 0) return;
  s.units[unit].is_saving = false;
  if (result.ok) {
    s.units[unit].on_disk = true;
    s.by_key[s.units[unit].key] = unit;
  }
  s.drop_if_nowhere(unit);
}

void KvCache::add_stored_unit(std::span<const int32_t> tokens, uint64_t salt) {
  State& s = *state_;
  if (!s.options.prefix_caching || !s.options.disk || tokens.empty()) return;
  int32_t unit = s.index.find(tokens, salt);
  if (unit < 0) unit = s.new_unit(tokens, salt);
  s.units[unit].on_disk = true;
  s.units[unit].key = unit_keys(s.layout, s.options.fingerprint, salt, tokens).unit;
  s.by_key[s.units[unit].key] = unit;
}

int64_t KvCache::save_all_units() {
  State& s = *state_;
  if (!s.has_host()) return 0;
  const auto num_units = static_cast<int32_t>(s.units.size());
  for (int32_t unit = 0; unit < num_units; ++unit) {
    if (s.units[unit].node < 0 || !s.host.holds(unit)) continue;
    if (s.units[unit].on_disk) {  // its host blocks can take something else
      s.host.leave(unit);
    } else if (s.options.disk && !s.units[unit].is_saving) {
      s.waiting_saves.push_back({s.handle_of(unit), -1});
    }
  }
  int64_t num_waiting = 0;
  for (int32_t unit = 0; unit < num_units; ++unit) {
    if (s.units[unit].node < 0 || !s.device.holds(unit) || s.host.holds(unit)) continue;
    if (s.units[unit].on_disk || s.units[unit].is_saving) continue;
    s.save(unit, State::HostRoom::kFreeOnly);
    if (!s.host.holds(unit)) ++num_waiting;
  }
  return num_waiting;
}

std::string KvCache::State::check_tiers(std::vector<std::vector<int32_t>>& device_uses) const {
  for (const BlockCopy& copy : open_copies) ++device_uses[copy.group][copy.from];
  std::vector<std::vector<int32_t>> host_uses;
  for (int g = 0; g < host.num_groups(); ++g) host_uses.emplace_back(host.pool(g).capacity(), 0);
  for (const BlockTransfer& transfer : transfers) ++host_uses[transfer.group][transfer.host_block];
  for (const auto& [id, load] : loads) {
    if (load.state != LoadState::kPending) continue;
    for (int g = 0; g < num_groups(); ++g)
      for (const BlockId block : load.blocks.groups[g].blocks) ++device_uses[g][block];
    for (const Piece& piece : load.pieces) {
      ++host_uses[piece.group][piece.host];
      if (piece.is_extra) ++device_uses[piece.group][piece.device];
    }
  }
  for (const auto& [id, job] : jobs)
    for (const DiskJob::Block& block : job.saved) ++host_uses[block.group][block.host_block];
  const std::string problem = host.check(host_uses);
  return problem.empty() ? "" : "host memory: " + problem;
}

}  // namespace deepinfer
