// HostBlocks: the bytes of the host tier, a piece of memory a group. By default pages are taken from the system as they
// are first written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "cache/cache_layout.h"

namespace deepinfer {

class HostBlocks {
 public:
  // Gives so many bytes, or says why not.
  using Memory = std::function<Result<std::shared_ptr<std::byte>>(int64_t bytes)>;

  // memory: where the blocks lie, for those that a device copies to and from.
  static Result<std::unique_ptr<HostBlocks>> allocate(const CacheLayout& layout, const std::vector<int32_t>& num_blocks,
                                                      const Memory& memory = map_memory);
  // Memory of the process, zero until it is written.
  static Result<std::shared_ptr<std::byte>> map_memory(int64_t bytes);
  HostBlocks(const HostBlocks&) = delete;
  HostBlocks& operator=(const HostBlocks&) = delete;

  // Requires: a group and a block of it.
  std::span<std::byte> block(int group, BlockId block) const;

 private:
  struct Group {
    std::shared_ptr<std::byte> memory;
    int64_t block_bytes = 0;
    int32_t num_blocks = 0;
  };
  HostBlocks() = default;

  std::vector<Group> groups_;
};

}  // namespace deepinfer
