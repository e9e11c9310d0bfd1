// What the system says of its memory.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

namespace deepinfer {

// A line of /proc/meminfo ("MemAvailable") in bytes, 0 if it is not there.
inline uint64_t memory_info(std::string_view key) {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  for (uint64_t kilobytes; file >> name >> kilobytes; std::getline(file, unit)) {
    if (name.size() == key.size() + 1 && name.back() == ':' && name.starts_with(key)) return kilobytes * 1024;
  }
  return 0;
}

}  // namespace deepinfer
