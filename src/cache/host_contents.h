// HostContents: which host block holds what, by content key, so that a block is saved once however many units share it.
// An entry is only as good as the generation of its block: once the block was free, it names nothing.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "cache/block_pool.h"
#include "cache/content_key.h"

namespace deepinfer {

class HostContents {
 public:
  explicit HostContents(const std::vector<int32_t>& num_blocks) {
    for (const int32_t blocks : num_blocks) groups_.push_back({{}, std::vector<ContentKey>(blocks)});
  }

  // The block with this content; kNoBlock if there is none.
  BlockId find(int group, const ContentKey& key, const BlockPool& pool) const {
    const auto entry = groups_[group].by_key.find(key);
    if (entry == groups_[group].by_key.end()) return kNoBlock;
    return pool.generation(entry->second.block) == entry->second.generation ? entry->second.block : kNoBlock;
  }
  // The block, which is held, has this content now and none other.
  void set(int group, BlockId block, const ContentKey& key, const BlockPool& pool) {
    Group& g = groups_[group];
    const auto before = g.by_key.find(g.key_of[block]);
    if (before != g.by_key.end() && before->second.block == block) g.by_key.erase(before);
    g.key_of[block] = key;
    g.by_key[key] = {block, pool.generation(block)};
  }

 private:
  struct Entry {
    BlockId block = kNoBlock;
    uint32_t generation = 0;
  };
  struct Group {
    std::unordered_map<ContentKey, Entry, ContentKeyHash> by_key;
    std::vector<ContentKey> key_of;  // of each block, what it held last
  };
  std::vector<Group> groups_;
};

}  // namespace deepinfer
