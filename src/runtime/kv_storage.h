// KvStorage: the bytes behind a cache's block numbers: one arena a group, in memory of the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "cache/cache_layout.h"

namespace deepinfer {

class KvStorage {
 public:
  // Memory is taken from the system when a block is first written.
  static Result<KvStorage> create(const CacheLayout& layout, std::span<const int32_t> num_blocks);

  std::byte* block(int group, BlockId id) const { return arenas_[group].base + id * arenas_[group].block_bytes; }
  int64_t block_bytes(int group) const { return arenas_[group].block_bytes; }
  void copy(const BlockCopy& copy) const;

  KvStorage() = default;
  ~KvStorage();
  KvStorage(KvStorage&& other) noexcept : arenas_(std::move(other.arenas_)) { other.arenas_.clear(); }
  KvStorage& operator=(KvStorage&& other) noexcept {
    std::swap(arenas_, other.arenas_);
    return *this;
  }

 private:
  struct Arena {
    std::byte* base = nullptr;
    int64_t bytes = 0;
    int64_t block_bytes = 0;  // rounded up to whole cache lines
  };
  std::vector<Arena> arenas_;
};

}  // namespace deepinfer
