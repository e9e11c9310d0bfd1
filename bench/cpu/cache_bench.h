// Times attention and index selection of one token over cached rows of every format at the released widths.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deepinfer::bench {

struct CacheBenchOptions {
  std::string kernels;  // a kernel set by name
  int num_threads = 1;
  double seconds = 2.0;
};

struct CacheResult {
  std::string set;
  std::string format;
  int num_threads = 1;
  int64_t attention_row_bytes = 0;  // of a compressed row
  int64_t index_row_bytes = 0;
  double attention_ns = 0;  // p50 a row: 64 heads read it as key and value
  double index_ns = 0;      // p50 a row: 32 heads score it, and its share of the selection
};

// A row a format. Attention reads a window of 128 and 512 rows scattered over 65,536; selection scores all of those.
// Formats take turns, so that a busy machine slows all of them alike.
std::vector<CacheResult> bench_caches(const CacheBenchOptions& options);

}  // namespace deepinfer::bench
