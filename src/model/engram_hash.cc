#include "model/engram_hash.h"

#include <algorithm>
#include <array>
#include <bit>

namespace deepinfer {
namespace {

using Uint128 = unsigned __int128;

// The multipliers were drawn with a seeded PCG64 generator whose seed is expanded by hashing; both are restated here
// because every bit of them decides which rows are read.
class SeedExpansion {
 public:
  explicit SeedExpansion(uint32_t seed) {
    for (size_t i = 0; i < pool_.size(); ++i) pool_[i] = absorb(i == 0 ? seed : 0);
    for (size_t source = 0; source < pool_.size(); ++source)
      for (size_t target = 0; target < pool_.size(); ++target)
        if (source != target) pool_[target] = mix(pool_[target], absorb(pool_[source]));
  }

  std::array<uint64_t, 4> words() const {
    std::array<uint64_t, 4> out{};
    uint32_t key = 0x8b51f9dd;
    for (int j = 0; j < 8; ++j) {
      uint32_t v = pool_[j % 4] ^ key;
      key *= 0x58f38ded;
      v *= key;
      v ^= v >> 16;
      out[j / 2] |= static_cast<uint64_t>(v) << (32 * (j % 2));
    }
    return out;
  }

 private:
  uint32_t absorb(uint32_t v) {
    v ^= key_;
    key_ *= 0x931e8875;
    v *= key_;
    return v ^ (v >> 16);
  }
  static uint32_t mix(uint32_t x, uint32_t y) {
    const uint32_t r = 0xca01f9ddu * x - 0x4973f715u * y;
    return r ^ (r >> 16);
  }

  std::array<uint32_t, 4> pool_{};
  uint32_t key_ = 0x43b0d7e5;
};

class Pcg64 {
 public:
  explicit Pcg64(uint32_t seed) {
    const auto words = SeedExpansion(seed).words();
    increment_ = ((Uint128{words[2]} << 64 | words[3]) << 1) | 1;
    step();
    state_ += Uint128{words[0]} << 64 | words[1];
    step();
  }

  // Uniform in [0, bound). Requires: bound > 2^32 (below that the original generator draws 32-bit words instead).
  uint64_t below(uint64_t bound) {
    Uint128 product = Uint128{next()} * bound;
    if (static_cast<uint64_t>(product) < bound) {
      const uint64_t threshold = (0 - bound) % bound;
      while (static_cast<uint64_t>(product) < threshold) product = Uint128{next()} * bound;
    }
    return static_cast<uint64_t>(product >> 64);
  }

 private:
  static constexpr Uint128 kMultiplier = Uint128{2549297995355413924u} << 64 | 4865540595714422341u;

  void step() { state_ = state_ * kMultiplier + increment_; }
  uint64_t next() {
    step();
    const auto folded = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
    return std::rotr(folded, static_cast<int>(state_ >> 122));
  }

  Uint128 state_ = 0;
  Uint128 increment_ = 0;
};

// Odd, and so small that a product with a compressed id stays below 2^63.
std::vector<uint64_t> multipliers_of(int64_t layer, int64_t count, int64_t compressed_vocab_size) {
  const uint64_t max_product = (uint64_t{1} << 63) - 1;
  const uint64_t bound = std::max<uint64_t>(1, max_product / static_cast<uint64_t>(compressed_vocab_size) / 2);
  Pcg64 generator(static_cast<uint32_t>(10007 * layer));
  std::vector<uint64_t> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(2 * generator.below(bound) + 1);
  return out;
}

uint64_t power_mod(uint64_t base, uint64_t exponent, uint64_t modulus) {
  uint64_t result = 1;
  for (base %= modulus; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result = static_cast<uint64_t>(Uint128{result} * base % modulus);
    base = static_cast<uint64_t>(Uint128{base} * base % modulus);
  }
  return result;
}

}  // namespace

bool is_prime(uint64_t n) {
  // Miller-Rabin; with these twelve bases it decides every 64-bit number.
  constexpr uint64_t kBases[] = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37};
  if (n < 2) return false;
  for (const uint64_t base : kBases)
    if (n % base == 0) return n == base;
  const int twos = std::countr_zero(n - 1);
  const auto is_witness = [&](uint64_t base) {  // of n being composite
    uint64_t x = power_mod(base, (n - 1) >> twos, n);
    if (x == 1 || x == n - 1) return false;
    for (int i = 1; i < twos; ++i) {
      x = static_cast<uint64_t>(Uint128{x} * x % n);
      if (x == n - 1) return false;
    }
    return true;
  };
  return std::none_of(std::begin(kBases), std::end(kBases), is_witness);
}

std::vector<std::vector<uint64_t>> engram_primes(const EngramConfig& config) {
  // The searches of all orders and tables start at the same number and skip used primes, so together they are one
  // ascending walk.
  std::vector<std::vector<uint64_t>> primes(config.layer_ids.size());
  uint64_t candidate = static_cast<uint64_t>(config.vocab_size);
  for (auto& columns : primes) {
    for (int64_t column = 0; column < config.num_columns(); ++column) {
      while (!is_prime(candidate)) ++candidate;
      columns.push_back(candidate++);
    }
  }
  return primes;
}

Result<EngramHash> EngramHash::create(const EngramConfig& config, int32_t pad_id) {
  DI_CHECK(config.enabled(), "a model without Engram layers has no hash");
  if (pad_id < 0 || pad_id >= config.compressed_vocab_size)
    return invalid_input(
        "the compressed id {} of engram_pad_token_id {} is not in [0, {}); use the token map of this model", pad_id,
        config.pad_token_id, config.compressed_vocab_size);
  EngramHash hash;
  hash.num_columns_ = static_cast<int>(config.num_columns());
  hash.max_ngram_ = static_cast<int>(config.max_ngram_size);
  hash.num_heads_ = static_cast<int>(config.n_heads);
  hash.pad_id_ = pad_id;
  for (const auto& primes : engram_primes(config)) {
    Table table;
    table.multipliers =
        multipliers_of(config.layer_ids[hash.tables_.size()], config.max_ngram_size, config.compressed_vocab_size);
    table.primes = primes;
    for (const uint64_t prime : primes) {
      table.offsets.push_back(table.num_rows);
      table.num_rows += static_cast<int64_t>(prime);
    }
    hash.tables_.push_back(std::move(table));
  }
  return hash;
}

void EngramHash::look_back(std::span<const int32_t> history, std::span<int32_t> window) const {
  bool blocked = false;  // stays set: nothing older than a dead position is looked at
  for (size_t s = 0; s < window.size(); ++s) {
    blocked = blocked || s >= history.size() || history[history.size() - 1 - s] == kDeadId;
    window[s] = blocked ? pad_id_ : history[history.size() - 1 - s];
  }
}

void EngramHash::hash(int table_index, std::span<const int32_t> window, std::span<int64_t> rows) const {
  const Table& table = tables_[table_index];
  uint64_t mixed = static_cast<uint64_t>(window[0]) * table.multipliers[0];
  int column = 0;
  for (int s = 1; s < max_ngram_; ++s) {
    mixed ^= static_cast<uint64_t>(window[s]) * table.multipliers[s];
    for (int head = 0; head < num_heads_; ++head, ++column)
      rows[column] = static_cast<int64_t>(mixed % table.primes[column]) + table.offsets[column];
  }
}

}  // namespace deepinfer
