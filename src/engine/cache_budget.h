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

// Least: one sequence of max_model_len tokens runs, and every slot has blocks for a short one. What is left is shared
// between rows that grow with length and cached units. bytes == 0: enough for every slot to be full, at most
// half of `free_memory`. Too little is refused with what would do.
Result<CacheBudget> plan_cache(const CacheLayout& layout, const SchedulerOptions& options, int64_t bytes,
                               int64_t free_memory);

// Blocks of the host tier in the proportion of the device's; too few for one unit of each kind is refused.
Result<std::vector<int32_t>> plan_host_cache(const CacheLayout& layout, const CacheBudget& device, int64_t bytes);

// Bytes of memory that the system could give now.
int64_t free_memory();

}  // namespace deepinfer
