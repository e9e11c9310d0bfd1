// How many blocks of each group a number of bytes buys.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "cache/cache_layout.h"
#include "scheduler/scheduler.h"

namespace deepinfer {

struct CacheBudget {
  std::vector<int32_t> num_blocks;  // a group
  int64_t bytes = 0;
};

// Of the device, in bytes.
struct CacheMemory {
  int64_t free = 0;
  int64_t by_default = 0;  // at most this much is taken when nobody says how much
};

// Least: one sequence of max_model_len tokens runs, and every slot has blocks for a short one. What is left is shared
// between rows that grow with length and cached units. bytes == 0: enough for every slot to be full, at most
// memory.by_default. Too little is refused with what would do.
Result<CacheBudget> plan_cache(const CacheLayout& layout, const SchedulerOptions& options, int64_t bytes,
                               const CacheMemory& memory);

// Blocks of the host tier in the proportion of the device's; too few for one unit of each kind is refused.
Result<std::vector<int32_t>> plan_host_cache(const CacheLayout& layout, const CacheBudget& device, int64_t bytes);

// Bytes of the host's memory that the system could give now.
int64_t free_memory();

}  // namespace deepinfer
