// Philox4x32-10 (Salmon et al., SC 2011): a counter-based generator. The same key and counter give the same numbers on
// every machine, in any order of asking.
#pragma once

#include <array>
#include <cstdint>

namespace deepinfer {

inline std::array<uint32_t, 4> philox(uint64_t key, std::array<uint32_t, 4> counter) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

// A number in (0, 1), a function of (seed, position, id) alone: 32 random bits, centred in their interval.
inline double uniform_at(uint64_t seed, int64_t position, int32_t id) {
  const auto p = static_cast<uint64_t>(position);
  const auto words =
      philox(seed, {static_cast<uint32_t>(id) / 4, static_cast<uint32_t>(p), static_cast<uint32_t>(p >> 32), 0});
  return (words[static_cast<uint32_t>(id) % 4] + 0.5) * 0x1p-32;
}

}  // namespace deepinfer
