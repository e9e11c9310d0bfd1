// Times one decoder layer at the released model's widths for single-token steps, with random weights, against the time
// that only reading those weights takes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deepinfer::bench {

struct LayerBenchOptions {
  std::string kernels;  // a kernel set by name
  int num_threads = 1;
  int64_t num_experts = 384;  // fewer need less memory, and a machine with large caches then flatters
  double seconds = 4.0;
};

struct LayerResult {
  std::string set;
  int num_threads = 1;
  int64_t num_experts = 0;
  double weight_bytes = 0;  // packed bytes that one token reads
  double read_gbps = 0;     // p50 of pure reads in between
  double floor_ms = 0;      // weight_bytes at that rate
  double layer_ms = 0;      // p50
  double attention_ms = 0;  // p50 of the attention half, the rest being experts
  double times_floor() const { return layer_ms / floor_ms; }
};

// The layer attends to a full window of 128 and to 512 selected rows of another layer's compressed KV.
LayerResult bench_layer(const LayerBenchOptions& options);

}  // namespace deepinfer::bench
