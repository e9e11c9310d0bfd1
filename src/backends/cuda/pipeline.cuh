// What a pipeline from device memory to the tensor cores is made of: barriers in shared memory that count bytes, and
// bulk copies that report to them.
//
// The pattern: a ring of stages, each with a barrier `full` (one arrival: the producer's announcement of bytes) and a
// barrier `empty` (kArrivalsOfWarp a consumer warp). Use u of a stage waits for full with parity u & 1, and the
// producer before filling it for use u for empty with parity (u & 1) ^ 1, which passes at once for u = 0.
//
// Bulk copies belong to the asynchronous proxy: barriers must be made visible to it after their initialisation
// (fence_barrier_init), and shared memory that threads wrote needs fence_async_proxy before a copy or a matrix
// instruction reads it. A stage that threads only read needs no fence before it is filled again.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace deepinfer::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// After barrier_init, by the thread that did it; then the threads of the block (or cluster) synchronise.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// At the barrier of the same address in block `block` of the cluster. Says that this thread's reads are over; a release
// to the whole cluster would wait for its writes to all memory too.
__device__ __forceinline__ void barrier_arrive_at(uint32_t barrier, uint32_t block) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(barrier),
      "r"(block)
      : "memory");
}
// Arrives and adds `bytes` to what copies still owe.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "again:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra.uni done;\nbra.uni again;\ndone:\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// A warp that hands a stage back: its lanes meet, and one of them speaks for the reads of all.
//
// compute-sanitizer's racecheck does not know that: it takes the reads of the other lanes for races with the copy that
// fills the stage again, in the simplest of rings too. Built with DEEPINFER_EVERY_LANE_ARRIVES, every lane arrives for
// itself, which it does understand; that build is for racecheck.
#ifdef DEEPINFER_EVERY_LANE_ARRIVES
inline constexpr int kArrivalsOfWarp = 32;
#else
inline constexpr int kArrivalsOfWarp = 1;
#endif
__device__ __forceinline__ void warp_arrive(uint32_t barrier) {
  if constexpr (kArrivalsOfWarp == 1) __syncwarp();
  if (kArrivalsOfWarp == 32 || threadIdx.x % 32 == 0) barrier_arrive(barrier);
}
// At the barriers of the same address in all blocks of the cluster.
template <int kBlocks>
__device__ __forceinline__ void warp_arrive_everywhere(uint32_t barrier) {
  if constexpr (kArrivalsOfWarp == 1) {
    __syncwarp();
    if (threadIdx.x % 32 < kBlocks) barrier_arrive_at(barrier, threadIdx.x % 32);
  } else {
    for (int block = 0; block < kBlocks; ++block) barrier_arrive_at(barrier, block);
  }
}

// Hints for the L2: what passes through once, what every block reads, and neither.
__device__ __forceinline__ uint64_t evict_first() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ uint64_t evict_normal() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ uint64_t evict_last() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// `bytes`, both addresses: multiples of 16. One thread calls it.
__device__ __forceinline__ void copy_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier,
                                          uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
// The map's box with its first element in column x of row y. What lies outside the tensor becomes zero; the bytes of
// the whole box are reported.
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap* map, int x, int y, uint32_t barrier,
                                         uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, "
      "%4}], [%2], %5;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "l"(policy)
      : "memory");
}
// The same into every block of the cluster whose bit is set in `blocks`: to the same address, reported to the same
// barrier of each.
__device__ __forceinline__ void copy_box_to_cluster(uint32_t to, const CUtensorMap* map, int x, int y, uint32_t barrier,
                                                    uint64_t policy, uint32_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_"
      "hint "
      "[%0], [%1, {%3, %4}], [%2], %6, %5;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "l"(policy), "h"(static_cast<uint16_t>(blocks))
      : "memory");
}
// The other way, from shared memory that threads wrote (and fenced for the asynchronous proxy); what lies outside the
// tensor is dropped. One thread calls it, and then the same one the waits.
__device__ __forceinline__ void store_box(const CUtensorMap* map, int x, int y, uint32_t from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(from),
               "r"(x), "r"(y)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until the stores have read their shared memory.
__device__ __forceinline__ void wait_for_reads_of_stores() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Counts one more at *counter and returns what it was: what the block wrote before (and synchronised on) is seen by
// whoever counts after, and this block sees what those wrote that counted before.
__device__ __forceinline__ unsigned count_arrival(unsigned* counter) {
  unsigned before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}
// Counts to `limit` and starts again from zero, without an answer: this block's writes come before, nothing else is
// ordered.
__device__ __forceinline__ void count_in_circle_unseen(unsigned* counter, unsigned limit) {
  asm volatile("red.inc.release.gpu.global.u32 [%0], %1;" ::"l"(counter), "r"(limit - 1) : "memory");
}

__device__ __forceinline__ unsigned count_of_arrivals(const unsigned* counter) {
  unsigned count;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
  return count;
}

// A barrier of `threads` threads of the block; 0 is __syncthreads'.
__device__ __forceinline__ void sync_threads(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// A ring's position.
struct RingPosition {
  int stage = 0;
  uint32_t use = 0;  // parity of the use
  __device__ __forceinline__ void advance(int num_stages) {
    if (++stage == num_stages) {
      stage = 0;
      use ^= 1;
    }
  }
};

}  // namespace deepinfer::cuda
