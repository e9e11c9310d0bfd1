// What the blocks of a cluster tell each other: that all have come to a place, and values, which are stored in another
// block's shared memory and reported to a barrier there. Nobody fences: whoever waits for that barrier sees them.
#pragma once

#include <cstdint>

namespace deepinfer::cuda {

// All threads of all blocks of the cluster.
__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::: "memory");
}
// Its two halves, for threads that have something to do between them. One that ends needs only the first.
__device__ __forceinline__ void arrive_in_cluster() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ __forceinline__ void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
__device__ __forceinline__ uint32_t block_in_cluster() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// What is at `address` of this block's shared memory, in block `block` of the cluster.
__device__ __forceinline__ uint32_t address_in(uint32_t address, uint32_t block) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
  return there;
}

// `to`, `barrier`: in one block of the cluster (address_in).
__device__ __forceinline__ void send(uint32_t to, float x, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to), "f"(x),
               "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void send(uint32_t to, float2 x, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
               "f"(x.x), "f"(x.y), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void send(uint32_t to, uint2 x, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(to),
               "r"(x.x), "r"(x.y), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void send(uint32_t to, const float4& x, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
      "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void send(uint32_t to, const uint4& x, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
      "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(barrier)
      : "memory");
}

}  // namespace deepinfer::cuda
