// Eight values of an activation at a time: 16 bytes of BF16 or 32 of fp32, as fp32 in registers. And sums over a block
// whose order depends on the number of threads alone.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "device/view.h"

namespace deepinfer::cuda {

using Bf16 = __nv_bfloat16;

inline constexpr int kVec = 8;

// What a BF16 is in fp32, as in base/number_formats.h.
__device__ inline float round_bf16(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }
__device__ inline float round_bf16_if(float x, bool round) { return round ? round_bf16(x) : x; }

__device__ inline uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ inline float low_bf16(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_bf16(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }

__device__ inline void unpack8(const uint4& bits, float (&v)[8]) {
  v[0] = low_bf16(bits.x), v[1] = high_bf16(bits.x), v[2] = low_bf16(bits.y), v[3] = high_bf16(bits.y);
  v[4] = low_bf16(bits.z), v[5] = high_bf16(bits.z), v[6] = low_bf16(bits.w), v[7] = high_bf16(bits.w);
}
__device__ inline uint4 pack8(const float (&v)[8]) {
  return {pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7])};
}

// At a multiple of 16 bytes.
__device__ inline void load8(const Bf16* p, float (&v)[8]) { unpack8(*reinterpret_cast<const uint4*>(p), v); }
__device__ inline void load8(const float* p, float (&v)[8]) {
  const float4 a = reinterpret_cast<const float4*>(p)[0], b = reinterpret_cast<const float4*>(p)[1];
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
__device__ inline void store8(Bf16* p, const float (&v)[8]) { *reinterpret_cast<uint4*>(p) = pack8(v); }
__device__ inline void store8(float* p, const float (&v)[8]) {
  reinterpret_cast<float4*>(p)[0] = {v[0], v[1], v[2], v[3]};
  reinterpret_cast<float4*>(p)[1] = {v[4], v[5], v[6], v[7]};
}

// A tensor as kernels take it. Rows begin at multiples of 16 bytes.
template <typename T>
struct Rows {
  T* data;
  int64_t stride;
  __device__ T* row(int64_t r) const { return data + r * stride; }
  __device__ explicit operator bool() const { return data != nullptr; }
};

template <typename T, typename View>
Rows<T> rows_of(const View& view) {
  DI_CHECK(view.data == nullptr || (reinterpret_cast<uintptr_t>(view.data) % 16 == 0 &&
                                    view.stride * static_cast<int64_t>(sizeof(T)) % 16 == 0 && view.cols % kVec == 0),
           "rows of {} values, {} apart, do not begin at multiples of 16 bytes", view.cols, view.stride);
  return {reinterpret_cast<T*>(const_cast<std::byte*>(view.data)), view.stride};
}

// Calls body with a value of the element type.
template <typename Body>
void with_element(ElementType type, Body&& body) {
  if (type == ElementType::kBf16) {
    body(Bf16());
  } else {
    body(float());
  }
}

// A block that handles one row: each thread has up to kRowVecs times eight channels.
inline constexpr int kRowVecs = 4;
inline int row_threads(int64_t width) {
  const int64_t threads = (width / kVec + 32 * kRowVecs - 1) / (32 * kRowVecs) * 32;
  DI_CHECK(threads <= 1024, "rows of {} values are too wide for a block", width);
  return static_cast<int>(std::max<int64_t>(threads, 32));
}
__device__ inline int row_channel(int k) { return (k * blockDim.x + threadIdx.x) * kVec; }

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, offset);
  return x;
}

// Sums of kCount values over the block, in all threads. Every warp is whole; `shared` is used for one sum only.
template <int kCount>
__device__ inline void block_sum(float (&x)[kCount], float (&shared)[32][kCount]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
#pragma unroll
  for (int i = 0; i < kCount; ++i) x[i] = warp_sum(x[i]);
  if (warps == 1) return;
  if (lane == 0) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) shared[warp][i] = x[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i) x[i] = warp_sum(lane < warps ? shared[lane][i] : 0.0f);
}

}  // namespace deepinfer::cuda
