// Sync guard: some code must never wait (the launch of a step, while the device works). It marks its region with a
// NoBlocking object; whatever waits says so first, and a wait inside such a region ends the process with both names, so
// that an accidental one is found the first time it runs.
//
// The cost is a thread-local read. Thread-safe: regions are of their thread.
#pragma once

#include <atomic>

#include "base/check.h"

namespace deepinfer {

class NoBlocking {
 public:
  explicit NoBlocking(const char* region) : before_(current()) { current() = region; }
  ~NoBlocking() { current() = before_; }
  NoBlocking(const NoBlocking&) = delete;
  NoBlocking& operator=(const NoBlocking&) = delete;

  static const char*& current() {
    static thread_local const char* region = nullptr;
    return region;
  }
  // For debugging: waits are let through.
  static std::atomic<bool>& disabled() {
    static std::atomic<bool> value{false};
    return value;
  }

 private:
  const char* before_;
};

// Called by whatever is about to wait, with its name.
inline void about_to_wait(const char* what) {
  DI_CHECK(NoBlocking::current() == nullptr || NoBlocking::disabled(), "{} waits inside {}, which must not", what,
           NoBlocking::current());
}

}  // namespace deepinfer
