// RowCache: a bounded set of copied table rows, by row number. Fixed memory, allocated once; CLOCK eviction.
//
// Split into independently locked parts so that readers seldom meet. Thread-safe. A row's bytes never change, so
// whether a row is cached changes speed only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace deepinfer {

class RowCache {
 public:
  // capacity_rows >= 0; 0 caches nothing. row_bytes > 0.
  RowCache(int64_t capacity_rows, int64_t row_bytes);

  int64_t capacity_rows() const { return capacity_rows_; }
  // Rows and the index over them.
  int64_t memory_bytes() const;

  // Copies the row to `out` [row_bytes] and marks it as used; false if it is not cached.
  bool read(int64_t row, std::byte* out);
  bool contains(int64_t row);
  // Copies `bytes` [row_bytes] in, in place of the row that was not used for longest (roughly). No effect if present.
  void insert(int64_t row, const std::byte* bytes);

 private:
  struct Part {
    std::mutex mutex;
    std::vector<int32_t> index;   // open addressing, a power of two of places: slot, or -1 for empty
    std::vector<int64_t> rows;    // [slots]: row number, or -1
    std::vector<uint8_t> used;    // [slots]: since the clock's hand last passed
    std::vector<std::byte> data;  // [slots * row_bytes]
    size_t hand = 0;
  };

  Part& part_of(int64_t row);
  static size_t home(const Part& part, int64_t row);
  static int find(const Part& part, int64_t row);  // slot, or -1
  static void erase(Part& part, int64_t row);
  static size_t free_slot(Part& part);

  int64_t capacity_rows_;
  int64_t row_bytes_;
  std::vector<std::unique_ptr<Part>> parts_;  // a power of two of them, or none
};

}  // namespace deepinfer
