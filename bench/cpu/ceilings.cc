#include "cpu/ceilings.h"

#include <atomic>

#include "backends/cpu/linear.h"
#include "base/check.h"

namespace deepinfer::bench {
namespace {

bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
bool has_avx512() { return __builtin_cpu_supports("avx512f"); }
bool has_bf16() { return __builtin_cpu_supports("avx512bf16"); }
bool has_vnni() { return __builtin_cpu_supports("avx512vnni"); }
bool has_amx() { return cpu::amx_linear().supported(); }

constexpr PeakLoop kLoops[] = {
    {"fp32 fma, avx2", has_avx2, fma_avx2, 12 * 8 * 2},
    {"fp32 fma, avx512", has_avx512, fma_avx512, 24 * 16 * 2},
    {"vdpbf16ps", has_bf16, dot_bf16_avx512, 24 * 32 * 2},
    {"vpdpbusd (int8)", has_vnni, dot_int8_avx512, 24 * 64 * 2},
    {"tdpbf16ps", has_amx, dot_bf16_amx, 4 * 16 * 16 * 32 * 2},
};

constexpr double kWindowSeconds = 2e-3;

}  // namespace

std::span<const PeakLoop> peak_loops() { return kLoops; }

const PeakLoop& peak_loop(const std::string& name) {
  for (const PeakLoop& loop : kLoops) {
    if (name == loop.name) return loop;
  }
  DI_CHECK(false, "no loop is named {}", name);
}

PeakWindow::PeakWindow(ThreadPool& pool, const PeakLoop& loop) : pool_(pool), loop_(loop) {
  constexpr int64_t kTrial = 100000;
  double seconds = 1e9;
  for (int i = 0; i < 5; ++i) seconds = std::min(seconds, seconds_of([&] { loop.run(kTrial); }));
  rounds_ = static_cast<int64_t>(kTrial * kWindowSeconds / seconds) + 1;
  operations_ = static_cast<double>(rounds_ * pool.num_threads()) * loop.operations;
}

void PeakWindow::run(Windows& windows) const {
  windows.add(seconds_of([&] { pool_.run(pool_.num_threads(), [&](int64_t, int) { loop_.run(rounds_); }); }));
}

void read_memory(ThreadPool& pool, std::span<const std::byte> memory) {
  // Pieces as large as a unit of the kernels has, or smaller where there are many threads.
  const int64_t bytes = static_cast<int64_t>(memory.size());
  const int64_t piece = std::clamp<int64_t>(bytes / (4 * pool.num_threads()) / 4096 * 4096, 64 << 10, 512 << 10);
  static std::atomic<int64_t> sink;
  pool.run((bytes + piece - 1) / piece, [&](int64_t i, int) {
    sink.fetch_xor(read_streams(memory.data() + i * piece, std::min(piece, bytes - i * piece)),
                   std::memory_order_relaxed);
  });
}

double clock_ghz() {
  constexpr int64_t kRounds = 200000;
  double best = 0.0;
  for (int repeat = 0; repeat < 30; ++repeat) {
    const double seconds = seconds_of([&] {
      uint64_t value = 1;
      for (int64_t r = 0; r < kRounds; ++r) {
        __asm__ volatile(
            "add %0, %0\n\tadd %0, %0\n\tadd %0, %0\n\tadd %0, %0\n\tadd %0, %0\n\tadd %0, %0\n\tadd %0, %0\n\tadd %0, "
            "%0"
            : "+r"(value));
      }
    });
    best = std::max(best, 8.0 * kRounds / seconds * 1e-9);
  }
  return best;
}

}  // namespace deepinfer::bench
