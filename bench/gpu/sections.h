// The parts of the benchmark: each times its ops through the op table, checks a few outputs against reference.h with
// outputs poisoned before, and adds rows to the card's results. An op that the table lacks is named there as missing.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "backends/cuda/cuda_bench_tools.h"
#include "gpu/card.h"
#include "gpu/random_weights.h"

namespace deepinfer::bench {

struct Parts {
  Card& card;
  SliceWeights& weights;
  cuda::VendorGemm* vendor = nullptr;                 // null: not installed
  bool is_quick = false;                              // fewer sizes
  int64_t most_rows = 0;                              // no more rows together than this; 0: all sizes
  std::string model;                                  // a folder for the engine's rows; empty: none
  const std::atomic<int64_t>* allocations = nullptr;  // of the heap so far; null: nobody counts

  // Those of `rows` that are asked for.
  std::vector<int64_t> sizes(std::vector<int64_t> rows) const {
    if (most_rows > 0) std::erase_if(rows, [&](int64_t n) { return n > most_rows; });
    return rows;
  }
};

void measure_ceilings(Parts& parts);
void bench_linear(Parts& parts);
void bench_experts(Parts& parts);
void bench_attention(Parts& parts);
void bench_indexer(Parts& parts);
void bench_top_k(Parts& parts);  // selection by itself
void bench_mhc(Parts& parts);
void bench_head(Parts& parts);  // and sampling
// Layers of every kind, Engram and head as the model calls them; then whole steps composed of them.
void bench_layers(Parts& parts);

// The scheduler, and the engine on parts.model. Their rows are not of kernels and printed by themselves.
void bench_host(Parts& parts);
void print_host(const Results& results);

// The first of `ops` (name, whether it is there) that is absent, as a row's check; empty if all are there.
std::string missing(const std::vector<std::pair<const char*, bool>>& ops);

}  // namespace deepinfer::bench
