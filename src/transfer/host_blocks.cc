#include "transfer/host_blocks.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace deepinfer {

Result<std::shared_ptr<std::byte>> HostBlocks::map_memory(int64_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return Status(ErrorCode::kOutOfMemory, std::strerror(errno));
  ::madvise(memory, bytes, MADV_HUGEPAGE);  // a refusal changes speed only
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(memory), [bytes](std::byte* p) { ::munmap(p, bytes); });
}

Result<std::unique_ptr<HostBlocks>> HostBlocks::allocate(const CacheLayout& layout,
                                                         const std::vector<int32_t>& num_blocks, const Memory& memory) {
  DI_CHECK(layout.groups.size() == num_blocks.size(), "{} groups, {} numbers of blocks", layout.groups.size(),
           num_blocks.size());
  std::unique_ptr<HostBlocks> blocks(new HostBlocks);
  for (size_t g = 0; g < num_blocks.size(); ++g) {
    Group& group = blocks->groups_.emplace_back();
    const int64_t bytes = layout.groups[g].block_bytes * num_blocks[g];
    group.block_bytes = layout.groups[g].block_bytes;
    if (bytes == 0) continue;
    Result<std::shared_ptr<std::byte>> given = memory(bytes);
    if (!given.ok()) {
      return Status(ErrorCode::kOutOfMemory,
                    fmt::format("{} bytes of host memory for {} cache blocks \"{}\": {}; ask for a smaller host cache",
                                bytes, num_blocks[g], layout.groups[g].name, given.status().message()));
    }
    group.memory = std::move(given).value();
    group.num_blocks = num_blocks[g];
  }
  return blocks;
}

std::span<std::byte> HostBlocks::block(int group, BlockId block) const {
  DI_CHECK(group >= 0 && group < static_cast<int>(groups_.size()), "group {} of {}", group, groups_.size());
  const Group& g = groups_[group];
  DI_CHECK(block >= 0 && block < g.num_blocks, "host block {} of {} in group {}", block, g.num_blocks, group);
  return {g.memory.get() + g.block_bytes * block, static_cast<size_t>(g.block_bytes)};
}

}  // namespace deepinfer
