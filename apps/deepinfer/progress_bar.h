// ProgressBar: how far loading is, on stderr when that is a terminal. Redrawn at most ten times a second, and only once
// loading has taken half a second.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

namespace deepinfer::app {

class ProgressBar {
 public:
  ProgressBar() = default;
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar() {
    if (shown_) std::fprintf(stderr, "\r\033[K");
  }

  void update(double share) {
    const auto now = std::chrono::steady_clock::now();
    if (!is_terminal_ || now - start_ < std::chrono::milliseconds(500)) return;
    if (share < 1 && now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    shown_ = true;
    constexpr int kWidth = 40;
    const int filled = static_cast<int>(std::clamp(share, 0.0, 1.0) * kWidth);
    std::fprintf(stderr, "\rloading [%s%s] %3.0f %%", std::string(filled, '#').c_str(),
                 std::string(kWidth - filled, ' ').c_str(), std::clamp(share, 0.0, 1.0) * 100);
    std::fflush(stderr);
  }

 private:
  const bool is_terminal_ = isatty(STDERR_FILENO) != 0;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_{};
  bool shown_ = false;
};

}  // namespace deepinfer::app
