// EngramHash: from the last tokens to the rows of the n-gram tables. Constants (multipliers, prime bucket counts,
// offsets) follow from the config alone. Immutable, thread-safe, no allocation after `create`.
//
// All ids here are compressed ids; an image position is kDeadId. Columns are ordered by n-gram order (2, 3, ..), then
// head.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "model/model_config.h"

namespace deepinfer {

inline constexpr int32_t kDeadId = -1;

class EngramHash {
 public:
  // pad_id: the compressed id of config.pad_token_id. Requires: config.enabled().
  static Result<EngramHash> create(const EngramConfig& config, int32_t pad_id);

  int num_tables() const { return static_cast<int>(tables_.size()); }
  int num_columns() const { return num_columns_; }
  int window_size() const { return max_ngram_; }  // the ids one position depends on, its own included
  int64_t num_rows(int table) const { return tables_[table].num_rows; }

  // window[s] = the id s positions back, or pad from the first position on that is dead or before the sequence.
  // `history`: the sequence's ids up to and including the position in question; its last window_size() are enough.
  // Requires: history not empty, window.size() == window_size().
  void look_back(std::span<const int32_t> history, std::span<int32_t> window) const;

  // rows[column] for a window of `look_back`. Requires: ids in [0, compressed vocab), rows.size() == num_columns().
  void hash(int table, std::span<const int32_t> window, std::span<int64_t> rows) const;

  struct Table {
    std::vector<uint64_t> multipliers;  // [window_size]
    std::vector<uint64_t> primes;       // [num_columns], rows of each column
    std::vector<int64_t> offsets;       // [num_columns], first row of each column
    int64_t num_rows = 0;
  };
  const Table& table(int index) const { return tables_[index]; }

 private:
  EngramHash() = default;

  std::vector<Table> tables_;
  int num_columns_ = 0;
  int max_ngram_ = 0;
  int num_heads_ = 0;
  int32_t pad_id_ = 0;
};

// primes[table][column]: one ascending search from config.vocab_size, restarted for each order, no prime used twice.
std::vector<std::vector<uint64_t>> engram_primes(const EngramConfig& config);

bool is_prime(uint64_t n);

}  // namespace deepinfer
