// Sums that blocks of one kernel hand each other through CudaStream::exchange(), memory that holds zeros between
// kernels: a value says itself that it is there. So nobody counts arrivals, and nobody waits until all that he wrote
// has arrived.
//
// Values are inverted, so that zeros are none (but a NaN that no instruction makes; it becomes another). Each has one
// reader, who waits for it and leaves zeros again; all blocks that write must be running then or have ended. Kernels use
// the same memory: nobody writes or looks before wait_for_kernel_before() has let a thread of the block go on.
#pragma once

#include <cstdint>

namespace deepinfer::cuda {

__device__ __forceinline__ uint32_t to_exchanged(float x) { return max(~__float_as_uint(x), 1u); }
__device__ __forceinline__ float from_exchanged(uint32_t x) { return __uint_as_float(~x); }
__device__ __forceinline__ bool is_there(uint32_t x) { return x != 0; }
__device__ __forceinline__ void store_exchanged(uint32_t* to, uint32_t x) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}
__device__ __forceinline__ uint32_t load_exchanged(const uint32_t* from) {
  uint32_t x;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
  return x;
}

// Four at a time.
__device__ __forceinline__ uint4 to_exchanged(float4 x) {
  return make_uint4(to_exchanged(x.x), to_exchanged(x.y), to_exchanged(x.z), to_exchanged(x.w));
}
__device__ __forceinline__ float4 from_exchanged(uint4 x) {
  return make_float4(from_exchanged(x.x), from_exchanged(x.y), from_exchanged(x.z), from_exchanged(x.w));
}
__device__ __forceinline__ bool is_there(uint4 x) { return (x.x != 0) & (x.y != 0) & (x.z != 0) & (x.w != 0); }
__device__ __forceinline__ void store_exchanged(uint4* to, uint4 x) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
               : "memory");
}
__device__ __forceinline__ uint4 load_exchanged(const uint4* from) {
  uint4 x;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from)
               : "memory");
  return x;
}

}  // namespace deepinfer::cuda
