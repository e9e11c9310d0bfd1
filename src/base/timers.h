// Timers: how long named parts of a loop take. One writer; a reader on another thread sees a value at most one update
// old. Percentiles come from a histogram whose buckets are 9 % apart.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace deepinfer {

class Timer {
 public:
  explicit Timer(std::string name) : name_(std::move(name)) {}

  void add(double seconds) {
    bump(count_, int64_t{1});
    bump(total_, seconds);
    if (seconds > largest_.load(kRelaxed)) largest_.store(seconds, kRelaxed);
    bump(buckets_[bucket_of(seconds)], int64_t{1});
  }

  const std::string& name() const { return name_; }
  int64_t count() const { return count_.load(kRelaxed); }
  double total() const { return total_.load(kRelaxed); }
  double largest() const { return largest_.load(kRelaxed); }

  // Seconds that `share` of all calls stayed below, within 9 %. 0 without calls.
  double percentile(double share) const {
    const auto wanted = static_cast<int64_t>(std::ceil(share * static_cast<double>(count())));
    int64_t seen = 0;
    for (int i = 0; i < kBuckets; ++i) {
      seen += buckets_[i].load(kRelaxed);
      if (seen >= wanted && seen > 0) return kSmallest * std::exp2((i + 0.5) / kPerOctave);
    }
    return largest();
  }

 private:
  static constexpr auto kRelaxed = std::memory_order_relaxed;
  static constexpr double kSmallest = 1e-8;  // seconds
  static constexpr int kPerOctave = 8;
  static constexpr int kBuckets = 40 * kPerOctave;  // up to three hours

  template <typename T>
  static void bump(std::atomic<T>& value, T by) {
    value.store(value.load(kRelaxed) + by, kRelaxed);
  }
  static int bucket_of(double seconds) {
    if (seconds <= kSmallest) return 0;
    return std::min(kBuckets - 1, static_cast<int>(std::log2(seconds / kSmallest) * kPerOctave));
  }

  std::string name_;
  std::atomic<int64_t> count_{0};
  std::atomic<double> total_{0}, largest_{0};
  std::array<std::atomic<int64_t>, kBuckets> buckets_{};
};

class ScopedTimer {
 public:
  explicit ScopedTimer(Timer& timer) : timer_(timer), start_(std::chrono::steady_clock::now()) {}
  ~ScopedTimer() { timer_.add(std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count()); }
  ScopedTimer(const ScopedTimer&) = delete;
  ScopedTimer& operator=(const ScopedTimer&) = delete;

 private:
  Timer& timer_;
  std::chrono::steady_clock::time_point start_;
};

// A row a timer, for people.
inline std::string timer_table(const std::vector<const Timer*>& timers) {
  std::string table = fmt::format("{:<12} {:>9} {:>10} {:>10} {:>10} {:>10}\n", "section", "calls", "total ms",
                                  "p50 us", "p99 us", "max us");
  for (const Timer* t : timers) {
    table += fmt::format("{:<12} {:>9} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f}\n", t->name(), t->count(),
                         t->total() * 1e3, t->percentile(0.5) * 1e6, t->percentile(0.99) * 1e6, t->largest() * 1e6);
  }
  return table;
}

}  // namespace deepinfer
