// Times and percentiles of repeated windows.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

namespace deepinfer::bench {

template <typename Body>
double seconds_of(Body&& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The durations of equal windows. Of rates, p90 is the rate that one window in ten exceeds: on a shared machine it is
// closer to what the hardware can do than p50.
class Windows {
 public:
  void add(double seconds) { seconds_.push_back(seconds); }
  size_t size() const { return seconds_.size(); }
  double p50() const { return at(0.5); }
  // Of `work` units a window.
  double rate_p50(double work) const { return work / at(0.5); }
  double rate_p90(double work) const { return work / at(0.1); }

 private:
  double at(double quantile) const {
    std::vector<double> sorted = seconds_;
    std::sort(sorted.begin(), sorted.end());
    return sorted.empty() ? 0.0 : sorted[static_cast<size_t>(quantile * static_cast<double>(sorted.size() - 1) + 0.5)];
  }

  std::vector<double> seconds_;
};

}  // namespace deepinfer::bench
