// What the machine can do at best: reading memory, and multiplying in registers. Kernels are judged against these,
// measured in the same run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "cpu/measure.h"

namespace deepinfer::bench {

// A loop over independent accumulators in registers.
struct PeakLoop {
  const char* name;
  bool (*supported)();
  void (*run)(int64_t rounds);
  double operations;  // multiplications and additions of a round
};

std::span<const PeakLoop> peak_loops();
// Requires: `name` is one of them.
const PeakLoop& peak_loop(const std::string& name);

// Operations of one window of about two milliseconds in every thread, and its duration.
class PeakWindow {
 public:
  PeakWindow(ThreadPool& pool, const PeakLoop& loop);
  double operations() const { return operations_; }
  void run(Windows& windows) const;

 private:
  ThreadPool& pool_;
  const PeakLoop& loop_;
  int64_t rounds_;
  double operations_;
};

// Reads all of it with every thread: each walks eight streams of addresses at a time.
void read_memory(ThreadPool& pool, std::span<const std::byte> memory);

// Cycles a nanosecond, from a chain of dependent additions.
double clock_ghz();

// Of loops.cc, loops_avx512.cc: see PeakLoop. The read gives the exclusive or of all words, so that it cannot be left
// out.
void fma_avx2(int64_t rounds);
void fma_avx512(int64_t rounds);
void dot_bf16_avx512(int64_t rounds);
void dot_int8_avx512(int64_t rounds);
void dot_bf16_amx(int64_t rounds);  // needs what cpu::amx_linear().supported() asks the system for
int64_t read_streams(const std::byte* from, int64_t bytes);

}  // namespace deepinfer::bench
