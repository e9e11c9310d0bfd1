#include "base/cpu_affinity.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>

namespace deepinfer {
namespace {

// The node's number is in the name of a link beside the processor; machines without nodes have none.
int node_of(int cpu) {
  std::error_code error;
  const std::filesystem::path folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu);
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (name.size() > 4 && name.rfind("node", 0) == 0) return std::atoi(name.c_str() + 4);
  }
  return 0;
}

}  // namespace

std::vector<int> usable_cpus() {
  cpu_set_t set;
  std::vector<std::pair<int, int>> found;  // (node, processor)
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) found.emplace_back(node_of(cpu), cpu);
    }
  }
  if (found.empty()) found.emplace_back(0, 0);
  std::sort(found.begin(), found.end());
  std::vector<int> cpus;
  for (const auto& [node, cpu] : found) cpus.push_back(cpu);
  return cpus;
}

bool bind_this_thread(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return sched_setaffinity(0, sizeof(set), &set) == 0;
}

}  // namespace deepinfer
