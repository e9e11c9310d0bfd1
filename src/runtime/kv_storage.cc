#include "runtime/kv_storage.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace deepinfer {

Result<KvStorage> KvStorage::create(const CacheLayout& layout, std::span<const int32_t> num_blocks) {
  DI_CHECK(num_blocks.size() == layout.groups.size(), "{} counts for {} groups", num_blocks.size(), layout.groups.size());
  KvStorage storage;
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    Arena arena;
    arena.block_bytes = (layout.groups[g].block_bytes + 63) / 64 * 64;
    arena.bytes = arena.block_bytes * num_blocks[g];
    void* memory =
        mmap(nullptr, arena.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      return Status(ErrorCode::kOutOfMemory,
                    fmt::format("no address space for {} MB of {} cache blocks ({}); lower kv_cache_bytes",
                                arena.bytes >> 20, layout.groups[g].name, std::strerror(errno)));
    }
    madvise(memory, arena.bytes, MADV_HUGEPAGE);
    arena.base = static_cast<std::byte*>(memory);
    storage.arenas_.push_back(arena);
  }
  return storage;
}

KvStorage::~KvStorage() {
  for (const Arena& arena : arenas_) munmap(arena.base, arena.bytes);
}

void KvStorage::copy(const BlockCopy& c) const {
  std::memcpy(block(c.group, c.to), block(c.group, c.from), arenas_[c.group].block_bytes);
}

}  // namespace deepinfer
