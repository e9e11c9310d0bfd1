#include "engine/cache_budget.h"

#include <algorithm>

#include "base/memory_info.h"

namespace deepinfer {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Blocks that a sequence holds of a group however long it is (or, if the group keeps all rows, when it is short).
int64_t blocks_of_short(const CacheGroup& group) {
  return group.retention == CacheGroup::kKeepAll ? 1 : ceil_div(group.retention, group.tokens_per_block) + 1;
}

}  // namespace

Result<CacheBudget> plan_cache(const CacheLayout& layout, const SchedulerOptions& options, int64_t bytes,
                               const CacheMemory& memory) {
  const size_t num_groups = layout.groups.size();
  const std::vector<int32_t> least = Scheduler::least_blocks(layout, options);
  std::vector<int64_t> blocks(num_groups), most(num_groups);
  int64_t needed = 0, full = 0;
  for (size_t g = 0; g < num_groups; ++g) {
    const CacheGroup& group = layout.groups[g];
    const int64_t slots = options.max_num_seqs;
    blocks[g] = least[g] + slots * blocks_of_short(group);
    needed += blocks[g] * group.block_bytes;
    // Every slot full, and four units a slot kept.
    const int64_t long_one = group.retention == CacheGroup::kKeepAll
                                 ? ceil_div(options.max_model_len, group.tokens_per_block)
                                 : 4 * blocks_of_short(group);
    most[g] = blocks[g] + slots * long_one;
    full += most[g] * group.block_bytes;
  }
  if (bytes == 0) bytes = std::clamp(full, needed, std::max(needed, memory.by_default));
  if (bytes < needed) {
    return invalid_input(
        "kv_cache_bytes {}: one sequence of {} tokens (max_model_len) and {} slots (max_num_seqs) need {} MB; give "
        "more, "
        "or lower one of them",
        bytes, options.max_model_len, options.max_num_seqs, (needed >> 20) + 1);
  }
  if (needed > memory.free) {
    return Status(ErrorCode::kOutOfMemory,
                  fmt::format("the cache needs {} MB for one sequence of {} tokens (max_model_len) and {} slots "
                              "(max_num_seqs), {} MB are free; lower one of them",
                              needed >> 20, options.max_model_len, options.max_num_seqs, memory.free >> 20));
  }
  // The rest in the proportion that the full cache has.
  const double share = full > needed ? std::min(1.0, static_cast<double>(bytes - needed) / (full - needed)) : 0;
  CacheBudget budget;
  for (size_t g = 0; g < num_groups; ++g) {
    const int64_t extra = static_cast<int64_t>(share * static_cast<double>(most[g] - blocks[g]));
    budget.num_blocks.push_back(static_cast<int32_t>(std::min<int64_t>(blocks[g] + extra, INT32_MAX)));
    budget.bytes += budget.num_blocks.back() * layout.groups[g].block_bytes;
  }
  return budget;
}

Result<std::vector<int32_t>> plan_host_cache(const CacheLayout& layout, const CacheBudget& device, int64_t bytes) {
  std::vector<int32_t> blocks;
  const double share = static_cast<double>(bytes) / static_cast<double>(device.bytes);
  int64_t least = 0;
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    least = std::max(least, blocks_of_short(layout.groups[g]) * device.bytes / device.num_blocks[g]);
    blocks.push_back(static_cast<int32_t>(std::min(share * device.num_blocks[g], double{INT32_MAX})));
  }
  if (bytes < least) {
    return invalid_input("host_cache_bytes {}: less than a cached prefix takes; give at least {} MB or 0", bytes,
                         (least >> 20) + 1);
  }
  return blocks;
}

int64_t free_memory() {
  const uint64_t available = memory_info("MemAvailable");
  return available > 0 ? static_cast<int64_t>(available) : int64_t{1} << 33;  // a system that does not tell
}

}  // namespace deepinfer
