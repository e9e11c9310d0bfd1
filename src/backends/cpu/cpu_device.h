// The CPU as a device: a thread pool and one of the kernel sets this processor can run.
//
// Kernel sets: `reference` (plain loops), `avx2`, `avx512`, `avx512_bf16`. The first three give the same bits
// everywhere; `avx512_bf16` multiplies BF16 pairs in linear layers, which rounds differently, so it has to be asked
// for. It halves the arithmetic of prompts on processors that run that instruction at full rate, and is slower on those
// that do not.
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
