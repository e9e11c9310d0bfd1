// Sums in the order of a warp's lanes.
#pragma once

#include <cuda_runtime.h>

namespace deepinfer::cuda {

// The sum of `value` over the lanes up to `lane`, the caller's, which is among them. By whole warps.
template <typename T>
__device__ __forceinline__ T inclusive_scan_of_warp(T value, int lane) {
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const T other = __shfl_up_sync(~0u, value, d);
    if (lane >= d) value += other;
  }
  return value;
}

}  // namespace deepinfer::cuda
