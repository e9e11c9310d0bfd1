// How matrices lie in device memory, and how a thread turns its share of a tile into operands of wgmma.
//
// A matrix is cut into tiles of 64 rows x 64 columns, those of one row of tiles one after the other, so that any run of
// columns of 64 rows is one bulk copy. Rows and columns beyond the matrix are zeros. A tile holds codes in the order in
// which the 128 threads of a warpgroup consume them, 16 bytes a thread, then its scales:
//   kF8Tile32  2 x [128][16] codes of 32 columns each, then the E8M0 bytes of its 32x32 blocks: [row half][column
//   half];
//              4112 bytes, the last 12 unused
//   kMxfp4     [128][16] codes, then E8M0 bytes [row / 16][row % 8][column half][row / 8 % 2]; 2176 bytes
//   kBf16      4 x [128][16] values of 16 columns each; 8192 bytes
// kF32 is not tiled: [rows, cols] as in the checkpoint.
//
// Codes become BF16 without conversion instructions. Sign, exponent and mantissa moved to their places in a BF16 make a
// number that is smaller by a constant power of two, subnormals included; one packed multiplication by that constant
// and the block's scale finishes two values. The bits of a word's values are shuffled at packing such that most come
// out of a rotation and a mask. The multiplier must be a BF16, which bounds the scales of a matrix: packed_info says
// by how much they were shifted (the sums are then multiplied by `output_scale`), or that they span too much and only
// the exact kernel can use the matrix.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "ops/linear.h"

namespace deepinfer::cuda {

using ops::WeightFormat;

inline constexpr int kTileRows = 64;
inline constexpr int kTileCols = 64;

__host__ __device__ constexpr int tile_bytes(WeightFormat format) {
  return format == WeightFormat::kF8Tile32 ? 4112 : format == WeightFormat::kMxfp4 ? 2176 : 8192;
}

// What the host knows of a packed matrix besides ops::PackedWeight.
struct PackedInfo {
  // Added to a scale's byte, and to the constant of the format: the multiplier's exponent. Minus the shift.
  int scale_bias = 0;
  float output_scale = 1;   // what the sums of products are multiplied by: 2^shift
  bool exact_only = false;  // scales or NaNs that BF16 multipliers cannot express
};
// Requires: `weight` was packed by this backend.
PackedInfo packed_info(const ops::PackedWeight& weight);

inline int64_t row_tiles(const ops::PackedWeight& weight) { return (weight.rows + kTileRows - 1) / kTileRows; }
inline int64_t column_tiles(const ops::PackedWeight& weight) { return (weight.cols + kTileCols - 1) / kTileCols; }

// --- words of codes ----------------------------------------------------------------------------------------------

// The pairs (lower column in the lower half) of one word are its values' bits in their BF16 places, each rotated right
// by its own distance. E4M3: bits 15, 10..4; two pairs a word. E2M1: bits 15, 8..6; four pairs a word.
inline constexpr uint32_t kE4m3Bits = 0x87F087F0u;
inline constexpr uint32_t kE2m1Bits = 0x81C081C0u;

__host__ __device__ constexpr uint32_t rotate_left(uint32_t x, int k) {
  return (x << (k & 31)) | (x >> ((32 - k) & 31));
}

__host__ __device__ constexpr uint32_t e4m3_bits(uint32_t code) { return (code & 0x80u) << 8 | (code & 0x7Fu) << 4; }
__host__ __device__ constexpr uint32_t e2m1_bits(uint32_t code) { return (code & 8u) << 12 | (code & 7u) << 6; }

__host__ __device__ constexpr uint32_t join_e4m3(uint32_t pair0, uint32_t pair1) {
  return pair0 | rotate_left(pair1 & 0x87808780u, 4) | rotate_left(pair1 & 0x00700070u, 28);
}
__host__ __device__ constexpr void split_e4m3(uint32_t word, uint32_t* pairs) {
  pairs[0] = word & kE4m3Bits;
  pairs[1] = (rotate_left(word, 28) & 0x87808780u) | ((word << 4) & 0x00700070u);
}

__host__ __device__ constexpr uint32_t join_e2m1(const uint32_t* pairs) {
  return pairs[0] | rotate_left(pairs[1], 28) | rotate_left(pairs[2], 22) | rotate_left(pairs[3] & 0x00400040u, 26) |
         rotate_left(pairs[3] & 0x81808180u, 18);
}
__host__ __device__ constexpr void split_e2m1(uint32_t word, uint32_t* pairs) {
  pairs[0] = word & kE2m1Bits;
  pairs[1] = rotate_left(word, 4) & kE2m1Bits;
  pairs[2] = rotate_left(word, 10) & kE2m1Bits;
  pairs[3] = (rotate_left(word, 6) & 0x00400040u) | (rotate_left(word, 14) & 0x81808180u);
}

// Exponent fields of the multipliers for the scale byte 0.
inline constexpr int kE4m3Exponent = 120;
inline constexpr int kE2m1Exponent = 126;

// --- a thread's share of a tile ----------------------------------------------------------------------------------

__device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

__device__ __forceinline__ uint4 load_shared16(uint32_t address) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(address)
               : "memory");
  return x;
}
__device__ __forceinline__ uint32_t load_shared4(uint32_t address) {
  uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}
__device__ __forceinline__ uint32_t load_shared2(uint32_t address) {
  uint32_t x;
  asm volatile("{\n.reg .u16 x;\nld.shared.u16 x, [%1];\ncvt.u32.u16 %0, x;\n}\n" : "=r"(x) : "r"(address) : "memory");
  return x;
}

// load() reads thread `thread`'s share (0 ... 127) of a tile in shared memory, or the one whose codes and scales a loop
// knows as addresses: codes_at() and scales_at() beyond a tile `offset` bytes further. fragments() makes of it the
// operands of the two instructions of column half `half`: a[0 ... 3] those of its first 16 columns, a[4 ... 7] of the
// others. `exponent` is the format's constant plus the matrix's scale_bias. fragments() is prepare(), which touches no
// operand and so may run while instructions read the last ones, then finish().
template <WeightFormat kFormat>
struct TileShare;

template <>
struct TileShare<WeightFormat::kF8Tile32> {
  static constexpr int kExponent = kE4m3Exponent;
  static constexpr int bytes() { return tile_bytes(WeightFormat::kF8Tile32); }
  uint4 codes[2];
  uint32_t scales;

  static __device__ __forceinline__ uint32_t codes_at(int thread) { return thread * 16; }
  static __device__ __forceinline__ uint32_t scales_at(int thread) { return 4096 + thread / 64 * 2; }
  __device__ __forceinline__ void load(uint32_t own_codes, uint32_t own_scales, uint32_t offset) {
    codes[0] = load_shared16(own_codes + offset);
    codes[1] = load_shared16(own_codes + offset + 2048);
    scales = load_shared2(own_scales + offset);
  }
  __device__ __forceinline__ void load(const std::byte* tile, int thread) {
    codes[0] = reinterpret_cast<const uint4*>(tile)[thread];
    codes[1] = reinterpret_cast<const uint4*>(tile)[128 + thread];
    scales = reinterpret_cast<const uint16_t*>(tile + 4096)[thread / 64];
  }
  __device__ __forceinline__ void prepare(int half, int exponent, uint32_t (&bits)[8],
                                          uint32_t (&multipliers)[2]) const {
    multipliers[0] = multipliers[1] =
        (__byte_perm(scales, 0, half == 0 ? 0x4040 : 0x4141) << 7) + exponent * 0x00800080u;
    const uint4 q = codes[half];
    split_e4m3(q.x, bits);
    split_e4m3(q.y, bits + 2);
    split_e4m3(q.z, bits + 4);
    split_e4m3(q.w, bits + 6);
  }
  __device__ __forceinline__ void finish(int, const uint32_t (&bits)[8], const uint32_t (&multipliers)[2],
                                         uint32_t (&a)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i] = multiply_bf16x2(bits[i], multipliers[i % 2]);
  }
  __device__ __forceinline__ void fragments(int half, int exponent, uint32_t (&a)[8]) const {
    uint32_t bits[8], multipliers[2];
    prepare(half, exponent, bits, multipliers);
    finish(half, bits, multipliers, a);
  }
};

template <>
struct TileShare<WeightFormat::kMxfp4> {
  static constexpr int kExponent = kE2m1Exponent;
  static constexpr int bytes() { return tile_bytes(WeightFormat::kMxfp4); }
  uint4 codes;
  uint32_t scales;  // bytes: first column half of row g, of row g + 8; second half likewise

  static __device__ __forceinline__ uint32_t codes_at(int thread) { return thread * 16; }
  static __device__ __forceinline__ uint32_t scales_at(int thread) { return 2048 + thread / 4 * 4; }
  __device__ __forceinline__ void load(uint32_t own_codes, uint32_t own_scales, uint32_t offset) {
    codes = load_shared16(own_codes + offset);
    scales = load_shared4(own_scales + offset);
  }
  __device__ __forceinline__ void load(const std::byte* tile, int thread) {
    codes = reinterpret_cast<const uint4*>(tile)[thread];
    scales = reinterpret_cast<const uint32_t*>(tile + 2048)[thread / 4];
  }
  __device__ __forceinline__ void prepare(int half, int exponent, uint32_t (&bits)[8],
                                          uint32_t (&multipliers)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int byte = 2 * half + i;
      multipliers[i] = (__byte_perm(scales, 0, 0x4040 | byte << 8 | byte) << 7) + exponent * 0x00800080u;
    }
    split_e2m1(half == 0 ? codes.x : codes.z, bits);
    split_e2m1(half == 0 ? codes.y : codes.w, bits + 4);
  }
  __device__ __forceinline__ void finish(int, const uint32_t (&bits)[8], const uint32_t (&multipliers)[2],
                                         uint32_t (&a)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i] = multiply_bf16x2(bits[i], multipliers[i % 2]);
  }
  __device__ __forceinline__ void fragments(int half, int exponent, uint32_t (&a)[8]) const {
    uint32_t bits[8], multipliers[2];
    prepare(half, exponent, bits, multipliers);
    finish(half, bits, multipliers, a);
  }
};

template <>
struct TileShare<WeightFormat::kBf16> {
  static constexpr int kExponent = 0;
  static constexpr int bytes() { return tile_bytes(WeightFormat::kBf16); }
  uint32_t values;  // the address; read when asked for: they are operands as they are

  static __device__ __forceinline__ uint32_t codes_at(int thread) { return thread * 16; }
  static __device__ __forceinline__ uint32_t scales_at(int) { return 0; }
  __device__ __forceinline__ void load(uint32_t own_codes, uint32_t, uint32_t offset) { values = own_codes + offset; }
  __device__ __forceinline__ void load(const std::byte* tile, int thread) {
    values = static_cast<uint32_t>(__cvta_generic_to_shared(tile)) + thread * 16;
  }
  __device__ __forceinline__ void prepare(int, int, uint32_t (&)[8], uint32_t (&)[2]) const {}
  __device__ __forceinline__ void finish(int half, const uint32_t (&)[8], const uint32_t (&)[2],
                                         uint32_t (&a)[8]) const {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const uint4 v = load_shared16(values + 2048 * (2 * half + s));
      a[4 * s] = v.x, a[4 * s + 1] = v.y, a[4 * s + 2] = v.z, a[4 * s + 3] = v.w;
    }
  }
  __device__ __forceinline__ void fragments(int half, int exponent, uint32_t (&a)[8]) const {
    uint32_t bits[8], multipliers[2];
    prepare(half, exponent, bits, multipliers);
    finish(half, bits, multipliers, a);
  }
};

// --- single elements, for kernels that may be slow -----------------------------------------------------------------

// Where column `col` of row `row` of a tile is: the thread, and of its fragments' 16 pairs which one and which half.
struct TilePlace {
  int thread;
  int step;  // of 16 columns
  int pair;  // a[pair] of the step
  bool upper;
};
__host__ __device__ constexpr TilePlace tile_place(int row, int col) {
  return {row / 16 * 32 + row % 8 * 4 + col % 8 / 2, col / 16, row / 8 % 2 + col / 8 % 2 * 2, col % 2 != 0};
}

// The unscaled value as fp32, and the scale's byte (127 for kBf16).
__device__ inline float tile_element(WeightFormat format, const std::byte* tile, int row, int col, uint32_t* scale) {
  const TilePlace p = tile_place(row, col);
  const int at = p.upper ? 16 : 0;
  if (format == WeightFormat::kBf16) {
    *scale = 127;
    const uint32_t pair = reinterpret_cast<const uint32_t*>(tile)[(p.step * 128 + p.thread) * 4 + p.pair];
    return __uint_as_float(pair >> at << 16);
  }
  uint32_t pairs[4];
  if (format == WeightFormat::kF8Tile32) {
    *scale = static_cast<uint32_t>(tile[4096 + row / 32 * 2 + col / 32]);
    const int word = (p.step / 2 * 128 + p.thread) * 4 + p.step % 2 * 2 + p.pair / 2;
    split_e4m3(reinterpret_cast<const uint32_t*>(tile)[word], pairs);
    const uint32_t bits = pairs[p.pair % 2] >> at & 0xFFFFu;
    if ((bits & 0x7FF0u) == 0x07F0u) return __uint_as_float(0x7FC00000u);
    return __uint_as_float(bits << 16) * 0x1p120f;
  }
  *scale = static_cast<uint32_t>(tile[2048 + (row / 16 * 8 + row % 8) * 4 + col / 32 * 2 + row / 8 % 2]);
  split_e2m1(reinterpret_cast<const uint32_t*>(tile)[p.thread * 4 + p.step], pairs);
  return __uint_as_float((pairs[p.pair] >> at & 0xFFFFu) << 16) * 0x1p126f;
}

}  // namespace deepinfer::cuda
