// ContentKey: names what a block or unit holds by what it was computed from: the model and the kind of its cache (a
// fingerprint), the salt, all tokens up to the block's end, the group. Equal content has equal keys wherever it lies.
//
// Keys are 128-bit XXH3, chained over pieces of the tokens. They find things; that the tokens are the same is checked
// besides (the prefix index compares tokens, a unit on disk holds them).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/cache_layout.h"

namespace deepinfer {

struct ContentKey {
  uint64_t high = 0;
  uint64_t low = 0;
  bool operator==(const ContentKey&) const = default;
  std::string hex() const;
};

struct ContentKeyHash {
  size_t operator()(const ContentKey& key) const { return static_cast<size_t>(key.low); }
};

// Of everything that decides what bytes mean: `model` names the weights, the numerics and the format of the rows.
ContentKey cache_fingerprint(const CacheLayout& layout, std::string_view model);

struct UnitKeys {
  ContentKey unit;
  struct Group {
    int64_t first = 0;
    std::vector<ContentKey> blocks;  // of the blocks [first, first + blocks.size())
  };
  std::vector<Group> groups;
};

// The keys of a unit and of the blocks that it holds in each group. A block that the unit fills partly has a key of the
// rows that count.
UnitKeys unit_keys(const CacheLayout& layout, const ContentKey& fingerprint, uint64_t salt,
                   std::span<const int32_t> tokens);

// What a unit of so many tokens holds of a group: blocks [begin, end).
struct BlockRange {
  int64_t begin = 0;
  int64_t end = 0;
};
inline BlockRange unit_blocks(const CacheGroup& group, int64_t length) {
  const int64_t tokens = group.tokens_per_block;
  return {length <= group.retention ? 0 : (length - group.retention) / tokens, (length + tokens - 1) / tokens};
}

}  // namespace deepinfer
