// Launches of kernels. With kEarly the kernel's blocks may start while the kernel before still runs: the kernel calls
// wait_for_kernel_before() before it touches anything that work before it reads or writes, in every block.
//
// A kernel lets the next one start once it has waited itself. Sooner would be right too, where the next one relies on
// nothing but weights until it has waited: a kernel ends only when it has waited, so whoever waits comes after all that
// were launched before. But kernels then start several ahead, and what they fetch meanwhile holds up those that run:
// with all of them sooner a layer of one token took 161 us instead of 156, one of eight tokens 382 instead of 366
// (H200). It pays where a product of many weights follows a short kernel: latents.cu, route_few.cu (1 us each), and
// products themselves do it.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/cuda_stream.h"

namespace deepinfer::cuda {

enum class Start { kInOrder, kEarly };

template <typename... Params, typename... Args>
void launch(Stream& stream, Start start, dim3 blocks, int threads, size_t shared_bytes, void (*kernel)(Params...),
            Args&&... args) {
  if (blocks.x == 0 || blocks.y == 0) return;
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = cuda_stream(stream).handle();
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = start == Start::kEarly ? 1 : 0;
  DI_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}

// Blocks of `threads` for so many pieces of work, one a thread.
inline dim3 blocks_for(int64_t work, int threads) {
  return dim3(static_cast<unsigned>((work + threads - 1) / threads));
}

__device__ inline void wait_for_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// The kernel after may start its blocks once all blocks of this one have said so; it still waits for all of this one.
__device__ inline void let_next_kernel_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace deepinfer::cuda
