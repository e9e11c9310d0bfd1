// The values that a block selects from: its part of a row, in chunks of what registers hold. A thread has neighbouring
// ones, so that the order of threads is the order of the row; memory is read the other way, a quad a lane, and shared
// memory turns one into the other.
#pragma once

#include "backends/cuda/top_k_team.cuh"

namespace deepinfer::cuda {

inline constexpr int kTopKEach = 32;  // values of a thread at most
inline constexpr int kTopKChunk = kTopKEach * kTopKThreads;
inline constexpr int kTopKTurned = kTopKThreads * (kTopKEach + 4);  // words of shared memory

struct TopKValues {
  const uint4* quads;     // of the part; what lies between its end and the next multiple of four may be read
  uint32_t* turned;       // shared memory; rows of a thread's values and 4 words, against bank conflicts
  int count = 0;          // of the part
  bool ends_with_newest;  // its last value counts as the largest
  int log_each = 3;
  int first = 0;             // position in the part of the thread's first value of the chunk
  uint32_t keys[kTopKEach];  // what does not exist is 0

  __device__ __forceinline__ TopKValues(const uint32_t* values, int n, bool newest, uint32_t* shared)
      : quads(reinterpret_cast<const uint4*>(values)), turned(shared), count(n), ends_with_newest(newest) {
    while (log_each < 5 && count > kTopKThreads << log_each) ++log_each;
  }
  __device__ __forceinline__ int each() const { return 1 << log_each; }
  __device__ __forceinline__ int num_chunks() const { return (count + kTopKChunk - 1) / kTopKChunk; }
  __device__ __forceinline__ uint32_t* row(int i) const { return turned + i * (each() + 4); }

  // Values beyond the end are 0. `at`: the quad's first value.
  __device__ __forceinline__ uint4 cut(uint4 quad, int at) const {
    const int left = count - at;
    if (left > 4) return quad;
    const uint32_t newest = ends_with_newest ? ~0u : 0;
    quad.x = left < 1 ? 0 : quad.x | (left == 1 ? newest : 0);
    quad.y = left < 2 ? 0 : quad.y | (left == 2 ? newest : 0);
    quad.z = left < 3 ? 0 : quad.z | (left == 3 ? newest : 0);
    quad.w = left < 4 ? 0 : quad.w | (left == 4 ? newest : 0);
    return quad;
  }
  // Reads a chunk, and if `keeps` brings it to shared memory; best: the largest of each fourth of the values that the
  // thread sees.
  __device__ __forceinline__ void bring(int chunk, bool keeps, uint32_t (&best)[4]) {
    constexpr int kAtOnce = 4;
    const int begin = chunk * kTopKChunk / 4;  // in quads
    const int end = min(begin + (kTopKThreads << log_each) / 4, (count + 3) / 4);
#pragma unroll 1
    for (int some = begin + static_cast<int>(threadIdx.x); some < begin + (kTopKThreads << log_each) / 4;
         some += kAtOnce * kTopKThreads) {
      uint4 read[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int quad = some + i * kTopKThreads;
        read[i] = quad < end ? quads[quad] : uint4{};
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int quad = some + i * kTopKThreads, value = 4 * (quad - begin);
        if (value >= kTopKThreads << log_each) break;
        const uint4 v = quad < end ? cut(read[i], 4 * quad) : uint4{};
        if (keeps) *reinterpret_cast<uint4*>(row(value >> log_each) + (value & (each() - 1))) = v;
        best[0] = max(best[0], v.x), best[1] = max(best[1], v.y);
        best[2] = max(best[2], v.z), best[3] = max(best[3], v.w);
      }
    }
  }
  // After a barrier: the thread's values of what was brought.
  __device__ __forceinline__ void take(int chunk) {
    first = chunk * kTopKChunk + (static_cast<int>(threadIdx.x) << log_each);
    const auto* from = reinterpret_cast<const uint4*>(row(threadIdx.x));
#pragma unroll
    for (int i = 0; i < kTopKEach / 4; ++i) {
      const uint4 v = 4 * i < each() ? from[i] : uint4{};
      keys[4 * i] = v.x, keys[4 * i + 1] = v.y, keys[4 * i + 2] = v.z, keys[4 * i + 3] = v.w;
    }
  }
  // Calls body() with each chunk's values in `keys`; those of a single chunk are there.
  template <typename Body>
  __device__ __forceinline__ void each_chunk(const Body& body) {
#pragma unroll 1
    for (int chunk = 0; chunk < num_chunks(); ++chunk) {
      if (num_chunks() > 1) {
        uint32_t best[4] = {};
        __syncthreads();
        bring(chunk, true, best);
        __syncthreads();
        take(chunk);
      }
      body();
    }
  }
  // Bit i: value i exists.
  __device__ __forceinline__ uint32_t existing() const {
    const int left = min(count - first, each());
    return left >= 32 ? ~0u : left <= 0 ? 0 : (1u << left) - 1;
  }
  // Adds bit i to `above` if value i exists and is at least `high`, to `between` if it is less, but at least `low`. A
  // `high` of 0 is beyond all values.
  __device__ __forceinline__ void split(uint32_t low, uint32_t high, uint32_t& above, uint32_t& between) const {
    const uint32_t size = high - low;
#pragma unroll
    for (int i = 0; i < kTopKEach; ++i) {
      if (i % 8 == 0 && i >= each()) break;
      if (keys[i] >= low) between |= 1u << i;
      if (keys[i] - low >= size) above |= 1u << i;
    }
    between &= existing();
    above &= between;
    between ^= above;
  }
  // Value i of the thread.
  __device__ __forceinline__ uint32_t key(int i) const { return row(threadIdx.x)[i]; }
};

}  // namespace deepinfer::cuda
