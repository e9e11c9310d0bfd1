// Percentiles, medians with their spread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <nlohmann/json.hpp>

namespace deepinfer::bench {

// The value that `share` of all values do not exceed; 0 without values.
inline double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<int64_t>(std::ceil(share * static_cast<double>(values.size())));
  return values[std::clamp<int64_t>(rank - 1, 0, static_cast<int64_t>(values.size()) - 1)];
}

inline double median(const std::vector<double>& values) { return percentile(values, 0.5); }

// Of repeats.
inline nlohmann::ordered_json spread(const std::vector<double>& values) {
  return {{"median", median(values)}, {"least", percentile(values, 0)}, {"most", percentile(values, 1)}};
}

inline nlohmann::ordered_json percentiles(const std::vector<double>& values) {
  return {{"p50", percentile(values, 0.5)}, {"p95", percentile(values, 0.95)}, {"p99", percentile(values, 0.99)}};
}

}  // namespace deepinfer::bench
