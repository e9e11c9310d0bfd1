// SHA-256, for tests that compare with published digests.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace deepinfer {

namespace sha256_detail {

// The first 32 bits of the fractional part of a prime's square or cube root, by integer root finding.
inline uint32_t fraction_of_root(uint64_t prime, int degree) {
  using Uint128 = unsigned __int128;
  // The root times 2^32: the largest r with r^degree <= prime * 2^(32 * degree), bit by bit. r < 2^37.
  uint64_t root = 0;
  for (int bit = 36; bit >= 0; --bit) {
    const uint64_t r = root | uint64_t{1} << bit;
    const Uint128 square = Uint128{r} * r;
    // For cubes compare r^3 >> 32 with prime << 64, which fit 128 bits; equality cannot occur for primes.
    const bool fits = degree == 2 ? square <= Uint128{prime} << 64 : (square >> 16) * r >> 16 < Uint128{prime} << 64;
    if (fits) root = r;
  }
  return static_cast<uint32_t>(root);
}

}  // namespace sha256_detail

inline std::string sha256_hex(std::span<const uint8_t> message) {
  std::array<uint32_t, 8> state{};
  std::array<uint32_t, 64> k{};
  for (int n = 2, count = 0; count < 64; ++n) {
    bool is_prime = true;
    for (int d = 2; d * d <= n; ++d) is_prime &= n % d != 0;
    if (!is_prime) continue;
    if (count < 8) state[count] = sha256_detail::fraction_of_root(n, 2);
    k[count++] = sha256_detail::fraction_of_root(n, 3);
  }
  std::vector<uint8_t> padded(message.begin(), message.end());
  padded.push_back(0x80);
  while (padded.size() % 64 != 56) padded.push_back(0);
  for (int shift = 56; shift >= 0; shift -= 8) padded.push_back(static_cast<uint8_t>(message.size() * 8 >> shift));

  for (size_t block = 0; block < padded.size(); block += 64) {
    std::array<uint32_t, 64> w{};
    for (int i = 0; i < 64; ++i) w[i / 4] |= uint32_t{padded[block + i]} << (24 - 8 * (i % 4));
    for (int i = 16; i < 64; ++i) {
      const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
      const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (int i = 0; i < 64; ++i) {
      const uint32_t t1 =
          h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) + k[i] + w[i];
      const uint32_t t2 = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const uint32_t add[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; ++i) state[i] += add[i];
  }
  std::string hex;
  for (const uint32_t word : state) hex += fmt::format("{:08x}", word);
  return hex;
}

}  // namespace deepinfer
