// HostBlocks: the bytes of the host tier, a mapping a group. Pages are taken from the system as they are first written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "cache/cache_layout.h"

namespace deepinfer {

class HostBlocks {
 public:
  static Result<std::unique_ptr<HostBlocks>> allocate(const CacheLayout& layout,
                                                      const std::vector<int32_t>& num_blocks);
  ~HostBlocks();
  HostBlocks(const HostBlocks&) = delete;
  HostBlocks& operator=(const HostBlocks&) = delete;

  // Requires: a group and a block of it.
  std::span<std::byte> block(int group, BlockId block) const;

 private:
  struct Group {
    std::byte* begin = nullptr;
    int64_t block_bytes = 0;
    int32_t num_blocks = 0;
  };
  HostBlocks() = default;

  std::vector<Group> groups_;
};

}  // namespace deepinfer
