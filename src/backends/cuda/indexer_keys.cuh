// Stored index keys as the A operand of Hopper's matrix instruction.
//
// A warpgroup takes a tile of 64 keys of 128 channels. Which row of the instruction is which key, and which of its
// columns which channel, is free as long as the query agrees; the choice here makes the packed bytes a thread needs
// contiguous, with one scale, and keeps a run of 8 keys within four neighbouring lanes (times two keys a lane):
//   thread t, w = t / 32, g = t % 32 / 4, c = t % 4: keys first_key(t) and first_key(t) + 4, channels 32c .. 32c + 31
//   channel 32c + 8j + n is column 16 * (2j + n / 2 % 2) + 8 * (n % 2) + 2c + n / 4
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "ops/row_table.h"

namespace deepinfer::cuda {

inline constexpr int kTileKeys = 64;
inline constexpr int kKeyChannels = 128;

__device__ __forceinline__ int first_key(int thread) {
  const int warp = thread / 32, g = thread % 32 / 4;
  return warp / 2 * 32 + warp % 2 * 8 + g / 4 * 16 + g % 4;
}

__device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// 2^exponent twice. Requires: a normal number.
__device__ __forceinline__ uint32_t power_bf16x2(int exponent) {
  return static_cast<uint32_t>(exponent + 127) * 0x00800080u;
}

// How keys of a type lie in shared memory. load: the thread's channels of a key, out[4 * j + i] is channels 8j + i
// (lower half) and 8j + i + 4 of its 32.
template <ops::RowType kType>
struct KeyFormat;

template <>
struct KeyFormat<ops::RowType::kBf16> {
  static constexpr int kRowBytes = 256;
  static constexpr int kSharedBytes = 272;  // from key to key: rows of 256 bytes would share their banks

  static __device__ __forceinline__ void load(const std::byte* row, int c, int /*scale*/, uint32_t (&out)[16]) {
    const auto* from = reinterpret_cast<const uint4*>(row + 64 * c);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint4 w = from[j];
      out[4 * j] = __byte_perm(w.x, w.z, 0x5410);
      out[4 * j + 1] = __byte_perm(w.x, w.z, 0x7632);
      out[4 * j + 2] = __byte_perm(w.y, w.w, 0x5410);
      out[4 * j + 3] = __byte_perm(w.y, w.w, 0x7632);
    }
  }
  static constexpr int kLargestScale = 0;
  static __device__ __forceinline__ int scale(const std::byte* /*row*/, int /*c*/) { return 0; }
};

template <>
struct KeyFormat<ops::RowType::kE2m1Group32> {
  static constexpr int kRowBytes = 68;
  static constexpr int kSharedBytes = 68;

  // A code's magnitude moved to the lowest bits of exponent and the highest of the fraction is a BF16 number, subnormal
  // or not, 2^126 times too small; one multiplication makes up for it and scales. Requires: scale <= kLargestScale.
  // Where both shifts go left, one multiplication makes them, and what is not wanted of each copy is cut away.
  static __device__ __forceinline__ void load(const std::byte* row, int c, int scale, uint32_t (&out)[16]) {
    const auto* words = reinterpret_cast<const uint32_t*>(row) + 4 * c;
    constexpr uint32_t kMagnitude = 0x01c001c0u, kSign = 0x80008000u;
    const uint32_t factor = power_bf16x2(scale - 1);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t w = words[j];
      out[4 * j] = (w & 0x000f000fu) * (1u << 6 | 1u << 12) & (kMagnitude | kSign);
      out[4 * j + 1] = (w & 0x00f000f0u) * (1u << 2 | 1u << 8) & (kMagnitude | kSign);
      out[4 * j + 2] = (w >> 2 & kMagnitude) | (w << 4 & kSign);
      out[4 * j + 3] = (w >> 6 & kMagnitude) | (w & kSign);
    }
#pragma unroll
    for (uint32_t& pair : out) pair = multiply_bf16x2(pair, factor);
  }
  static constexpr int kLargestScale = 128;
  static __device__ __forceinline__ int scale(const std::byte* row, int c) { return static_cast<int>(row[64 + c]); }
};

template <>
struct KeyFormat<ops::RowType::kE4m3Group32> {
  static constexpr int kRowBytes = 132;
  static constexpr int kSharedBytes = 132;

  // As for E2M1, 2^120 times too small.
  static __device__ __forceinline__ void load(const std::byte* row, int c, int scale, uint32_t (&out)[16]) {
    const auto* words = reinterpret_cast<const uint32_t*>(row) + 8 * c;
    constexpr uint32_t kMagnitude = 0x07f007f0u, kSign = 0x80008000u;
    const uint32_t factor = power_bf16x2(scale - 7);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t low = words[2 * j], high = words[2 * j + 1];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t both = __byte_perm(low, high, i << 4 | (i + 4) << 12);  // codes in the upper byte of each half
        out[4 * j + i] = multiply_bf16x2((both >> 4 & kMagnitude) | (both & kSign), factor);
      }
    }
  }
  static constexpr int kLargestScale = 134;
  static __device__ __forceinline__ int scale(const std::byte* row, int c) { return static_cast<int>(row[128 + c]); }
};

// What a first factor of at most 2^kLargest leaves to do, since larger ones are beyond BF16.
template <int kLargest>
__device__ __forceinline__ void scale_further(const int (&scales)[2], uint32_t (&a)[32]) {
  if (max(scales[0], scales[1]) <= kLargest) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t rest = power_bf16x2(max(scales[half], kLargest) - kLargest);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      uint32_t& pair = a[i / 2 * 4 + i % 2 * 2 + half];
      pair = multiply_bf16x2(pair, rest);
    }
  }
}

// The thread's two keys as operands of the 8 instructions that make a dot product: a[4 * s ...] of columns 16s and on.
template <ops::RowType kType>
__device__ __forceinline__ void load_keys(const std::byte* tile, uint32_t (&a)[32]) {
  using Format = KeyFormat<kType>;
  constexpr int kLargest = Format::kLargestScale;
  const int thread = threadIdx.x % 128, c = thread % 4;
  const std::byte* rows[2];
  int scales[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    rows[half] = tile + (first_key(thread) + half * 4) * Format::kSharedBytes;
    scales[half] = Format::scale(rows[half], c);
    uint32_t pairs[16];
    Format::load(rows[half], c, min(scales[half], kLargest), pairs);
#pragma unroll
    for (int i = 0; i < 16; ++i) a[i / 2 * 4 + i % 2 * 2 + half] = pairs[i];
  }
  scale_further<kLargest>(scales, a);
}

// The two keys of a thread before they are converted, see load_keys.
template <ops::RowType kType>
struct StoredKeys {
  const std::byte* tile;
  __device__ __forceinline__ void load(const std::byte* from) { tile = from; }
  __device__ __forceinline__ void convert(uint32_t /*table*/, uint32_t (&a)[32]) const { load_keys<kType>(tile, a); }
};

// In registers, so that they come while something else goes on, and converted by a table of pairs of codes in shared
// memory, at an address that is a multiple of 64 KiB: pair i in each of the words 64 * i .. 64 * i + 31, one for each
// lane, whose own bank it is. A lookup takes two instructions where making a pair takes three or four; what it costs is
// time of shared memory. Columns are others than load_keys's, but of the same instruction: channel 32c + 8j + n is
// column 16 * (2j + n / 2 % 2) + 8 * (n / 4) + 2c + n % 2.
template <>
struct StoredKeys<ops::RowType::kE2m1Group32> {
  using Format = KeyFormat<ops::RowType::kE2m1Group32>;
  uint32_t words[2][4];
  int scales[2];

  // An entry of the table: what KeyFormat::load has before it scales, the first code in the lower half.
  static __device__ __forceinline__ uint32_t pair(uint32_t codes) {
    return (codes & 0x7) << 6 | (codes & 0x8) << 12 | (codes & 0x70) << 18 | (codes & 0x80) << 24;
  }
  __device__ __forceinline__ void load(const std::byte* tile) {
    const int thread = threadIdx.x % 128, c = thread % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::byte* row = tile + (first_key(thread) + half * 4) * Format::kSharedBytes;
#pragma unroll
      for (int j = 0; j < 4; ++j) words[half][j] = reinterpret_cast<const uint32_t*>(row)[4 * c + j];
      scales[half] = Format::scale(row, c);
    }
  }
  __device__ __forceinline__ void convert(uint32_t table, uint32_t (&a)[32]) const {
    const uint32_t own = table + threadIdx.x % 32 * 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t factor = power_bf16x2(min(scales[half], Format::kLargestScale) - 1);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const int byte = i % 2 * 2 + i / 2 % 2;
        uint32_t entry;
        asm("ld.shared.u32 %0, [%1];" : "=r"(entry) : "r"(__byte_perm(words[half][i / 4], own, 0x7604 | byte << 4)));
        a[i / 2 * 4 + i % 2 * 2 + half] = multiply_bf16x2(entry, factor);
      }
    }
    scale_further<Format::kLargestScale>(scales, a);
  }
};

}  // namespace deepinfer::cuda
