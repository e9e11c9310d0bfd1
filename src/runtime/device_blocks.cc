#include "runtime/device_blocks.h"

#include "base/check.h"
#include "device/array.h"
#include "transfer/host_blocks.h"

namespace deepinfer {

Result<std::unique_ptr<DeviceBlocks>> DeviceBlocks::allocate(Device& device, const CacheLayout& layout,
                                                             const std::vector<int32_t>& num_blocks) {
  DI_CHECK(layout.groups.size() == num_blocks.size(), "{} groups, {} numbers of blocks", layout.groups.size(),
           num_blocks.size());
  std::unique_ptr<DeviceBlocks> blocks(new DeviceBlocks);
  for (size_t g = 0; g < num_blocks.size(); ++g) {
    Group& group = blocks->groups_.emplace_back();
    group.block_bytes = layout.groups[g].block_bytes;
    group.num_blocks = num_blocks[g];
    const int64_t bytes = group.block_bytes * num_blocks[g];
    if (bytes == 0) continue;
    const std::string purpose = fmt::format("{} cache blocks \"{}\"", num_blocks[g], layout.groups[g].name);
    if (device.shares_host_memory()) {
      Result<std::shared_ptr<std::byte>> mapped = HostBlocks::map_memory(bytes);
      if (!mapped.ok()) {
        return Status(ErrorCode::kOutOfMemory, fmt::format("{} bytes of memory for {}: {}; lower kv_cache_bytes", bytes,
                                                           purpose, mapped.status().message()));
      }
      group.memory = std::move(mapped).value();
    } else {
      DI_ASSIGN_OR_RETURN(group.memory, allocate_on(device, bytes, purpose, "lower kv_cache_bytes"));
    }
  }
  return blocks;
}

std::byte* DeviceBlocks::block(int group, BlockId block) const {
  DI_CHECK(group >= 0 && group < static_cast<int>(groups_.size()), "group {} of {}", group, groups_.size());
  const Group& g = groups_[group];
  DI_CHECK(block >= 0 && block < g.num_blocks, "block {} of {} in group {}", block, g.num_blocks, group);
  return g.memory.get() + g.block_bytes * block;
}

}  // namespace deepinfer
