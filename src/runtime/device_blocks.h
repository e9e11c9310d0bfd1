// DeviceBlocks: the bytes of the cache in device memory, a piece of memory a group.
//
// Where device memory is the host's, pages are taken from the system as they are first written, so a generous cache
// costs what is used of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "cache/cache_layout.h"
#include "device/stream.h"

namespace deepinfer {

class DeviceBlocks {
 public:
  // The device must outlive the result.
  static Result<std::unique_ptr<DeviceBlocks>> allocate(Device& device, const CacheLayout& layout,
                                                        const std::vector<int32_t>& num_blocks);
  DeviceBlocks(const DeviceBlocks&) = delete;
  DeviceBlocks& operator=(const DeviceBlocks&) = delete;

  // Requires: a group and a block of it.
  std::byte* block(int group, BlockId block) const;
  int64_t block_bytes(int group) const { return groups_[group].block_bytes; }

 private:
  struct Group {
    std::shared_ptr<std::byte> memory;
    int64_t block_bytes = 0;
    int32_t num_blocks = 0;
  };
  DeviceBlocks() = default;

  std::vector<Group> groups_;
};

}  // namespace deepinfer
