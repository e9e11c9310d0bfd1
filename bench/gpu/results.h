// What the GPU benchmark finds: ceilings and rows of times, each with the work it stands for, so that floors and shares
// come from the ceilings of the same run.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace deepinfer::bench {

// Of one call: the median over replays in two rounds, and how far the rounds are apart.
struct Timing {
  double us = 0;
  double spread = 0;   // |first - second| / us
  double kernels = 0;  // launched by one call
};

struct Ceilings {
  double read_gbps = 0;
  double copy_gbps = 0;  // bytes read plus bytes written
  double bf16_tflops = 0;
  double empty_kernel_us = 0;
  double graph_launch_us = 0;  // host time to launch a recording of a whole step's kernels
  double graph_gap_us = 0;     // device time between two of them, launched back to back
  double clock_before_ghz = 0, clock_after_ghz = 0;

  double bandwidth() const { return copy_gbps * 1e9; }
};

struct KernelRow {
  std::string section;  // as in --only
  std::string name;
  int64_t rows = 0;
  double bytes = 0;  // that must be read and written
  double flops = 0;  // that must be done
  Timing timing;
  std::string peer;  // what peer_us is, empty: none
  double peer_us = 0;
  std::string check;  // "ok ...", "WRONG ...", "missing ...", or empty: not checked here

  double floor_us(const Ceilings& c) const;
  double efficiency(const Ceilings& c) const { return timing.us > 0 ? floor_us(c) / timing.us : 0; }
  double tflops() const { return flops / timing.us * 1e-6; }
  bool is_missing() const { return check.rfind("missing", 0) == 0; }
  bool is_wrong() const { return check.rfind("WRONG", 0) == 0; }
};

struct ComposedRow {
  std::string name;  // "decode" or "prefill"
  int64_t rows = 0;  // sequences, or tokens of a chunk
  int64_t context = 0;
  double ms = 0;
  double floor_ms = 0;
  std::string missing;  // parts that were not measured
};

// The scheduler's part of a step.
struct ScheduleRow {
  int64_t sequences = 0;
  double p50_us = 0;
  double allocations = -1;  // of the heap, a step; -1: not counted
};

// Steps of the engine on a small model, means: on the card, and the card's idle time before them.
struct EngineRow {
  int64_t sequences = 0;
  double step_us = 0;
  double idle_us = 0;
};

struct Goal {
  std::string stage, name;
  double value = 0;
  double bronze = 0, silver = 0, gold = 0;
  bool more_is_better = true;
  const char* level() const;
};

struct Results {
  std::string date, card, commit;
  Ceilings ceilings;
  std::string no_vendor_gemm;  // why the matrix rate is the datasheet's share and peers are absent
  std::vector<KernelRow> rows;
  std::vector<ComposedRow> composed;
  std::vector<ScheduleRow> schedule;
  std::vector<EngineRow> engine;
  std::string no_engine;  // why it could not be made
  std::vector<Goal> goals;

  // The row, or null if it was not measured.
  const KernelRow* find(const std::string& section, const std::string& name, int64_t rows) const;
};

}  // namespace deepinfer::bench
