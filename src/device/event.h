// Event: a moment in a stream's order of work, for a host that does not want to wait for all of it, and for the time
// between two such moments.
#pragma once

#include <chrono>

#include "base/status.h"

namespace deepinfer {

class Event {
 public:
  virtual ~Event() = default;
  // Whether what came before the last Stream::record of it has run; true if there was none. Does not wait. Fails if the
  // device has.
  virtual Result<bool> reached() = 0;
  virtual Status wait() = 0;
  // Requires: both were recorded and reached.
  virtual double seconds_since(const Event& earlier) const = 0;
};

// Of a device whose work runs at the call: the host's clock.
class HostEvent final : public Event {
 public:
  void record() { at_ = std::chrono::steady_clock::now(); }
  Result<bool> reached() override { return true; }
  Status wait() override { return Status(); }
  double seconds_since(const Event& earlier) const override {
    return std::chrono::duration<double>(at_ - static_cast<const HostEvent&>(earlier).at_).count();
  }

 private:
  std::chrono::steady_clock::time_point at_;
};

}  // namespace deepinfer
