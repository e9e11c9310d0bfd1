// Values of a block's warps, shown to all of its threads, and sums in the order of threads.
#pragma once

#include <cstdint>

#include "backends/cuda/warp_scan.cuh"

namespace deepinfer::cuda {

// Buffers alternate, so that one barrier a step is enough: whoever writes a buffer again has passed a barrier that
// everybody reached after reading it.
template <int kWarps>
struct WarpValues {
  uint2 (&buffers)[2][kWarps];  // shared memory
  uint32_t turn = 0;

  // Everybody's copy of what the warps' first lanes give, by warp; lanes beyond kWarps repeat it.
  __device__ uint2 share(uint2 of_warp) {
    uint2* values = buffers[turn++ & 1];
    if (threadIdx.x % 32 == 0) values[threadIdx.x / 32] = of_warp;
    __syncthreads();
    return values[threadIdx.x % kWarps];
  }
  // The sum of `value` over the threads of the block before this one; `total` over all of them.
  __device__ uint32_t exclusive_scan(uint32_t value, uint32_t& total) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t sum = inclusive_scan_of_warp(value, lane);
    const uint32_t of_warp = share({__shfl_sync(~0u, sum, 31), 0}).x;
    total = __reduce_add_sync(~0u, lane < kWarps ? of_warp : 0);
    return sum - value + __reduce_add_sync(~0u, lane < warp ? of_warp : 0);
  }
};

}  // namespace deepinfer::cuda
