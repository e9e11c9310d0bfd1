// EngramTable: rows of one n-gram table, checked and copied on demand. The table itself (some 100 GB) stays in the
// mapped file; only rows that were asked for are touched, and a bounded cache keeps copies of those read last.
//
// `prefetch` hands rows to a background thread that reads them from the disk into the cache; `gather` takes rows from
// the cache or straight from the mapping. Values never depend on which. Thread-safe. The checkpoint must outlive it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "checkpoint/row_cache.h"
#include "checkpoint/safetensors.h"

namespace deepinfer {

class EngramTable {
 public:
  struct Counters {
    int64_t hits = 0;        // gathered rows that were in the cache
    int64_t misses = 0;      // gathered rows read from the mapping
    int64_t prefetched = 0;  // rows the background thread put into the cache
    int64_t dropped = 0;     // rows asked for ahead while too many were waiting
  };

  // weight: F8_E4M3 [rows, dim], dim a multiple of 32; scale: F8_E8M0 [rows, dim / 32]. cache_rows: the cache takes
  // about cache_rows * (dim + dim / 32 + 20) bytes; 0 turns cache and prefetch off.
  static Result<std::unique_ptr<EngramTable>> create(const StoredTensor& weight, const StoredTensor& scale,
                                                     int64_t cache_rows);
  // Stops the background thread; rows still waiting are forgotten.
  ~EngramTable();
  EngramTable(const EngramTable&) = delete;
  EngramTable& operator=(const EngramTable&) = delete;

  int64_t num_rows() const { return num_rows_; }
  int64_t dim() const { return dim_; }
  int64_t cache_bytes() const { return cache_.memory_bytes(); }

  // Returns at once. Repeated and already cached rows cost little; rows outside of the table are ignored (gather
  // reports them).
  void prefetch(std::span<const int64_t> rows);
  // The rows as they are stored: codes [rows.size(), dim] and scales [rows.size(), dim / 32], value = e4m3 * 2^(scale -
  // 127). Fails if a row is outside of the table or holds a value that is not finite; what was copied is then partly
  // written. Does not allocate.
  Status gather(std::span<const int64_t> rows, uint8_t* codes, uint8_t* scales);

  // Waits until no prefetched row is waiting (for tests and measurements).
  void wait_for_prefetch();
  Counters counters() const;

 private:
  EngramTable(const StoredTensor& weight, const StoredTensor& scale, int64_t cache_rows);

  void run_prefetch();
  void fetch(std::span<const int64_t> rows, std::byte* scratch);
  void copy_row(int64_t row, std::byte* out) const;
  Status check_finite(int64_t row, const uint8_t* codes, const uint8_t* scales) const;

  std::string name_;
  int64_t num_rows_;
  int64_t dim_;
  int64_t scales_per_row_;
  const std::byte* codes_;   // [rows, dim]
  const std::byte* scales_;  // [rows, dim / 32]
  RowCache cache_;           // a row: its codes, then its scales

  std::mutex mutex_;
  std::condition_variable work_arrived_;
  std::condition_variable work_done_;
  std::vector<int64_t> waiting_;  // guarded by mutex_, like the two below
  bool is_fetching_ = false;
  bool is_stopping_ = false;
  std::atomic<bool> stop_now_{false};  // the same wish, seen between two rows without the lock
  std::atomic<int64_t> hits_{0}, misses_{0}, prefetched_{0}, dropped_{0};
  std::thread thread_;
};

}  // namespace deepinfer
