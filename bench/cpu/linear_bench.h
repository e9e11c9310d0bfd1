// Times one set of linear kernels on one format, against pure reads of the same memory and against the peak of the
// multiplying loops, both measured between the calls; then checks the timed results.
#pragma once

#include <string>
#include <vector>

#include "backends/cpu/linear.h"
#include "base/thread_pool.h"

namespace deepinfer::bench {

struct LinearShape {
  ops::WeightFormat format;
  const char* format_name;
  int64_t rows;
  int64_t cols;
};

struct GemvRow {
  std::string set;
  std::string format;
  int num_threads;
  int num_tokens;
  double gbps_p50, gbps_p90;  // bytes of packed weights
  double read_p50, read_p90;  // of the reads in between
  double cost;                // time over that of one token
  double cached_gbps;         // one thread, weights in its second-level cache; 0 where not measured
  std::string check;
};

struct GemmRow {
  std::string set;
  std::string format;
  int num_threads;
  int num_tokens;
  double gflops;
  double peak_gflops;
  std::string peak_name;
  std::string check;
};

struct LinearResults {
  std::vector<GemvRow> gemv;
  std::vector<GemmRow> gemm;
};

struct LinearBenchOptions {
  double set_bytes;  // of packed weights to rotate over
  double seconds;    // for each row of the result
};

// `pools` differ in their number of threads.
void bench_linear(const cpu::LinearKernels& kernels, const LinearShape& shape, const std::vector<ThreadPool*>& pools,
                  const LinearBenchOptions& options, LinearResults& results);

}  // namespace deepinfer::bench
