#include "cache/content_key.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace deepinfer {

namespace {

// Hashes fixed-size values and arrays one after another.
class Hasher {
 public:
  Hasher() { XXH3_128bits_reset(&state_); }
  template <typename T>
  Hasher& add(const T& value) {
    static_assert(std::is_arithmetic_v<T>);
    XXH3_128bits_update(&state_, &value, sizeof(value));
    return *this;
  }
  Hasher& add(const ContentKey& key) { return add(key.high).add(key.low); }
  Hasher& add_bytes(const void* data, size_t size) {
    XXH3_128bits_update(&state_, data, size);
    return *this;
  }
  ContentKey key() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(&state_);
    return {hash.high64, hash.low64};
  }

 private:
  XXH3_state_t state_;
};

// What the tokens up to a place hash to, extended piece by piece.
ContentKey extend(const ContentKey& before, std::span<const int32_t> piece) {
  constexpr size_t kMaxOnStack = 512;
  if (piece.size() <= kMaxOnStack) {  // one call is several times cheaper than a streaming state
    std::byte bytes[sizeof(ContentKey) + kMaxOnStack * sizeof(int32_t)];
    std::memcpy(bytes, &before, sizeof(before));
    std::memcpy(bytes + sizeof(before), piece.data(), piece.size_bytes());
    const XXH128_hash_t hash = XXH3_128bits(bytes, sizeof(before) + piece.size_bytes());
    return {hash.high64, hash.low64};
  }
  return Hasher().add(before).add_bytes(piece.data(), piece.size_bytes()).key();
}

ContentKey at_end(const ContentKey& chain, int64_t end, uint32_t group) {
  struct {
    ContentKey chain;
    int64_t end;
    uint64_t group;
  } value{chain, end, group};
  const XXH128_hash_t hash = XXH3_128bits(&value, sizeof(value));
  return {hash.high64, hash.low64};
}

constexpr uint32_t kUnit = 0xFFFFFFFF;  // in place of a group

}  // namespace

std::string ContentKey::hex() const { return fmt::format("{:016x}{:016x}", high, low); }

ContentKey cache_fingerprint(const CacheLayout& layout, std::string_view model) {
  Hasher hasher;
  hasher.add(uint64_t{model.size()}).add_bytes(model.data(), model.size());
  for (const CacheGroup& group : layout.groups) {
    hasher.add(uint64_t{group.name.size()}).add_bytes(group.name.data(), group.name.size());
    hasher.add(group.tokens_per_block).add(group.block_bytes).add(group.retention);
  }
  return hasher.key();
}

UnitKeys unit_keys(const CacheLayout& layout, const ContentKey& fingerprint, uint64_t salt,
                   std::span<const int32_t> tokens) {
  const auto length = static_cast<int64_t>(tokens.size());
  int64_t piece = 1024;
  for (const CacheGroup& group : layout.groups) piece = std::min<int64_t>(piece, group.tokens_per_block);
  // chain[i]: the hash of the first i pieces. Blocks are a power of two of pieces, so all ends but the last are there.
  std::vector<ContentKey> chain(length / piece + 1);
  chain[0] = Hasher().add(fingerprint).add(salt).key();
  for (size_t i = 1; i < chain.size(); ++i) chain[i] = extend(chain[i - 1], tokens.subspan((i - 1) * piece, piece));
  const ContentKey whole =
      length % piece == 0 ? chain.back() : extend(chain.back(), tokens.subspan(length - length % piece));

  UnitKeys keys;
  keys.unit = at_end(whole, length, kUnit);
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    const BlockRange range = unit_blocks(layout.groups[g], length);
    UnitKeys::Group& group = keys.groups.emplace_back();
    group.first = range.begin;
    group.blocks.reserve(range.end - range.begin);
    for (int64_t b = range.begin; b < range.end; ++b) {
      const int64_t end = (b + 1) * layout.groups[g].tokens_per_block;
      const bool is_full = end <= length;
      group.blocks.push_back(at_end(is_full ? chain[end / piece] : whole, is_full ? end : length, g));
    }
  }
  return keys;
}

}  // namespace deepinfer
