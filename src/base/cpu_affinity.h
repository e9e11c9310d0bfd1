// Which processors this process may use, and how to stay on one of them.
#pragma once

#include <vector>

namespace deepinfer {

// Numbers of the processors that the process may run on, those of a NUMA node next to one another; never empty.
std::vector<int> usable_cpus();

// Keeps the calling thread on one processor. False if the system refuses (the processor is gone, a container forbids).
bool bind_this_thread(int cpu);

}  // namespace deepinfer
