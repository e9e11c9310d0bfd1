// Units with known bytes for the tests of the disk store: what a block holds follows from its key.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/content_key.h"
#include "transfer/disk_store.h"

namespace deepinfer {

inline ContentKey test_key(uint64_t number) { return {number * 0x9E3779B97F4A7C15u + 1, number}; }

inline int64_t test_block_bytes(uint32_t group) { return group == 0 ? 5000 : 333; }

inline std::vector<std::byte> test_bytes(const ContentKey& key, uint32_t group) {
  std::vector<std::byte> bytes(test_block_bytes(group));
  uint64_t state = key.high ^ (key.low << 7) ^ group;
  for (std::byte& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

struct TestUnit {
  ContentKey key;
  UnitRecord record;
};

// Unit `number` has blocks of its own and, in group 1, one that it shares with its neighbours.
inline TestUnit test_unit(uint64_t number) {
  TestUnit unit{.key = test_key(1000000 + number), .record = {.salt = number % 3, .tokens = {}, .blocks = {}}};
  for (uint64_t i = 0; i < 3 + number % 5; ++i) {
    unit.record.tokens.push_back(static_cast<int32_t>(number * 31 + i));
    unit.record.blocks.push_back({0, test_key(number * 100 + i)});
  }
  unit.record.blocks.push_back({1, test_key(500000 + number / 4)});
  return unit;
}

inline bool put(DiskStore& store, const TestUnit& unit) {
  for (const UnitRecord::Block& block : unit.record.blocks)
    if (!store.put_block(block.key, block.group, test_bytes(block.key, block.group))) return false;
  return store.put_unit(unit.key, unit.record.salt, unit.record.tokens, unit.record.blocks);
}

enum class Got { kNothing, kRight, kWrong };

// What the store gives for the unit: all of it or nothing, and the right bytes.
inline Got get(DiskStore& store, const TestUnit& unit) {
  if (!store.has_unit(unit.key, unit.record.salt, unit.record.tokens)) return Got::kNothing;
  for (const UnitRecord::Block& block : unit.record.blocks) {
    std::vector<std::byte> bytes(test_block_bytes(block.group));
    if (!store.get_block(block.key, block.group, bytes)) {
      store.drop_unit(unit.key);
      return Got::kNothing;
    }
    if (bytes != test_bytes(block.key, block.group)) return Got::kWrong;
  }
  return Got::kRight;
}

}  // namespace deepinfer
