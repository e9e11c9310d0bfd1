// The CPU as a device: a thread pool and one of the kernel sets this processor can run.
//
// Kernel sets: `reference` (plain loops), `avx2`, `avx512`, `avx512_bf16`, `amx`. The first three give the same bits
// everywhere; the other two multiply BF16 pairs in linear layers, each in its own order, so they have to be asked for.
// `avx512_bf16` halves the arithmetic of prompts on processors that run its instruction at full rate, and is slower on
// those that do not; `amx` multiplies many tokens several times as fast as either.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "device/stream.h"

namespace deepinfer {

struct CpuOptions {
  int num_threads = 0;           // 0: as many as the process may use
  bool bind_threads = false;     // each thread to a processor, neighbours on the same NUMA node
  std::string kernels = "auto";  // a kernel set by name; auto: the fastest here of those with the same bits
};

// Fails with kUnsupported for a kernel set that this processor lacks, naming those it has.
Result<std::unique_ptr<Device>> make_cpu_device(const CpuOptions& options);

}  // namespace deepinfer
