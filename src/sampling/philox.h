// Philox4x32-10 (Salmon et al., SC 2011): a counter-based generator. The same key and counter give the same numbers on
// every machine, in any order of asking.
//
// Key and counter: the key is the request's seed, or what choice_key() makes of it; the counter holds the token id over
// 4, the position's two halves, and a purpose (0 here: the noise of the target's tokens; others keep their own).
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

// The key of choice i of a request with this seed: the seed itself for choice 0, else mix(seed + i * kStride), where
// mix is the finaliser of SplitMix64. Bijective in the seed for every choice, and in the choice for every seed, so no
// two choices above 0 of one request share a stream. Requires: choice >= 0.
inline uint64_t choice_key(uint64_t seed, int32_t choice) {
  if (choice == 0) return seed;
  constexpr uint64_t kStride = 0x9E3779B97F4A7C15u;  // odd
  uint64_t x = seed + static_cast<uint64_t>(choice) * kStride;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// The random words of ids 4 * group .. 4 * group + 3 at a position.
inline std::array<uint32_t, 4> random_words(uint64_t key, int64_t position, uint32_t group) {
  const auto p = static_cast<uint64_t>(position);
  return philox(key, {group, static_cast<uint32_t>(p), static_cast<uint32_t>(p >> 32), 0});
}

// A number in (0, 1): 32 random bits, centred in their interval.
inline double uniform_of(uint32_t word) { return (word + 0.5) * 0x1p-32; }

// A function of (key, position, id) alone.
inline double uniform_at(uint64_t key, int64_t position, int32_t id) {
  return uniform_of(random_words(key, position, static_cast<uint32_t>(id) / 4)[static_cast<uint32_t>(id) % 4]);
}

}  // namespace deepinfer
