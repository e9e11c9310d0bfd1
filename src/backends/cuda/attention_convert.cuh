// From the codes of cached rows to BF16 tiles, by bit operations: 64 keys at a time, 256 columns (a half) by a
// warpgroup.
//
// Values of codes are stored times 2^-8, which leaves every bit of a scale's range room: products of the codes' bits,
// which are BF16 numbers with a small exponent, and of an adjusted scale are exact. Whoever uses the tiles takes the
// factor (row_scale) out again. Rows of BF16 are stored as they are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cuda/attention_mma.cuh"
#include "ops/row_table.h"

namespace deepinfer::cuda {

__device__ __forceinline__ uint32_t multiply_bf16(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}
__device__ __forceinline__ uint4 load_row16(const std::byte* p) { return __ldg(reinterpret_cast<const uint4*>(p)); }
__device__ __forceinline__ void store_unit(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
__device__ __forceinline__ void store_unit(uint32_t to, const uint4& x) { store_unit(to, x.x, x.y, x.z, x.w); }
// A BF16 power of two, in both halves.
__device__ __forceinline__ constexpr uint32_t two_to(int exponent) { return ((127u + exponent) << 7) * 0x10001u; }

// Byte kLow of `word` as E4M3 bits in the lower half, byte kHigh in the upper: value * 2^-120.
template <int kLow, int kHigh>
__device__ __forceinline__ uint32_t e4m3_bits(uint32_t word) {
  const uint32_t spread = __byte_perm(word, 0, 0x0404 | kLow << 4 | kHigh << 12);
  return (spread & 0x80008000u) | ((spread & 0x7F007F00u) >> 4);
}

// Nibbles kAt and kAt + 4 of `word` as E2M1 bits in the lower and upper half: value * 2^-126. The product puts the sign
// of one copy and the rest of another where they belong: shifts would be two, on the busier pipe.
template <int kAt>
__device__ __forceinline__ uint32_t e2m1_bits(uint32_t word) {
  constexpr int kShift = 4 * (kAt % 2);
  const uint32_t nibbles = (kAt < 2 ? word : word >> 8) & 0x000F000Fu << kShift;
  return nibbles * ((1u << (12 - kShift)) + (1u << (6 - kShift))) & 0x81C081C0u;
}

// How a key's row is stored; kNone: there is no such key, its row is zeros.
enum class RowKind { kNone, kE4m3, kE2m1, kBf16 };

__host__ __device__ constexpr float row_scale(RowKind kind) { return kind == RowKind::kBf16 ? 1.0f : 0x1p-8f; }

// 512 E4M3 codes, an E8M0 scale for 32.
struct E4m3 {
  // 16 columns into two units.
  static __device__ __forceinline__ void convert(const uint4& codes, uint32_t scale, uint32_t first, uint32_t second) {
    const uint32_t factor = scale * 0x00800080u;  // the exponent of a BF16, in both halves
    store_unit(first, convert8(codes.x, codes.y, factor));
    store_unit(second, convert8(codes.z, codes.w, factor));
  }
  static __device__ __forceinline__ uint4 convert8(uint32_t low, uint32_t high, uint32_t scale) {
    return {value<0, 1>(low, scale), value<2, 3>(low, scale), value<0, 1>(high, scale), value<2, 3>(high, scale)};
  }
  // Two steps: a scale of 2^16 and more would not bear the whole factor.
  template <int kLow, int kHigh>
  static __device__ __forceinline__ uint32_t value(uint32_t word, uint32_t scale) {
    return multiply_bf16(multiply_bf16(e4m3_bits<kLow, kHigh>(word), two_to(120 - 8)), scale);
  }
};

// 512 E2M1 codes, an E4M3 scale for 16.
struct E2m1 {
  // 32 columns into four units.
  static __device__ __forceinline__ void convert(const uint4& codes, uint32_t scales, const uint32_t (&to)[4],
                                                 uint32_t skip) {
    uint32_t first, second;
    factors(scales, first, second);
    // All values before the first store: a store holds its registers for a while.
    const uint4 a = convert8(codes.x, first), b = convert8(codes.y, first);
    const uint4 c = convert8(codes.z, second), d = convert8(codes.w, second);
    store_unit(to[0] + skip, a);
    store_unit(to[1] + skip, b);
    store_unit(to[2] + skip, c);
    store_unit(to[3] + skip, d);
  }
  // Two scales, lower bytes of `codes`, as factors of what e2m1_bits gives: times 2^118, in both halves of a word.
  static __device__ __forceinline__ void factors(uint32_t codes, uint32_t& first, uint32_t& second) {
    const uint32_t pair = multiply_bf16(multiply_bf16(e4m3_bits<0, 1>(codes), two_to(119)), two_to(119));
    first = __byte_perm(pair, 0, 0x1010);
    second = __byte_perm(pair, 0, 0x3232);
  }
  static __device__ __forceinline__ uint4 convert8(uint32_t word, uint32_t scale) {
    const uint32_t v04 = multiply_bf16(e2m1_bits<0>(word), scale), v15 = multiply_bf16(e2m1_bits<1>(word), scale);
    const uint32_t v26 = multiply_bf16(e2m1_bits<2>(word), scale), v37 = multiply_bf16(e2m1_bits<3>(word), scale);
    return {__byte_perm(v04, v15, 0x5410), __byte_perm(v26, v37, 0x5410), __byte_perm(v04, v15, 0x7632),
            __byte_perm(v26, v37, 0x7632)};
  }
};

// Loads that leave registers alone unless `there`: a load in a branch would be waited for where the branch ends.
__device__ __forceinline__ void load_if(bool there, uint4& x, const std::byte* from) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];\n}\n"
               : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w)
               : "l"(from), "r"(static_cast<int>(there)));
}
__device__ __forceinline__ void load_if(bool there, uint2& x, const std::byte* from) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n@p ld.global.nc.v2.b32 {%0, %1}, [%2];\n}\n"
               : "+r"(x.x), "+r"(x.y)
               : "l"(from), "r"(static_cast<int>(there)));
}

// A half of a row on its way through two threads; `part` 0 takes the even 16-byte pieces of its codes, 1 the odd ones.
struct HalfRow {
  uint4 codes[8] = {}, narrow_scales = {};  // E2M1 has four pieces
  uint2 wide_scales = {};

  __device__ __forceinline__ void load(const std::byte* row, RowKind kind, int half, int part) {
    const bool narrow = kind == RowKind::kE2m1, wide = kind == RowKind::kE4m3;
    const std::byte* from = row + half * (wide ? 256 : 128) + part * 16;
#pragma unroll
    for (int j = 0; j < 4; ++j) load_if(narrow || wide, codes[j], from + j * 32);
    load_if(narrow, narrow_scales, row + 256 + half * 16);
#pragma unroll
    for (int j = 4; j < 8; ++j) load_if(wide, codes[j], from + j * 32);
    load_if(wide, wide_scales, row + 512 + half * 8);
  }
  __device__ __forceinline__ void convert(RowKind kind, uint32_t tiles, int at, int part) const {
    uint32_t to[4];
    if (kind == RowKind::kE2m1) {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i] = unit_address(tiles, at, 4 * part + i);
      const uint32_t words[4] = {narrow_scales.x, narrow_scales.y, narrow_scales.z, narrow_scales.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) E2m1::convert(codes[j], words[j] >> part * 16, to, j * kTileBytes);
    } else if (kind == RowKind::kE4m3) {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i] = unit_address(tiles, at, i / 2 * 4 + 2 * part + i % 2);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const uint32_t scale = __byte_perm(j < 4 ? wide_scales.x : wide_scales.y, 0, 0x4440 | (j & 3));
        E4m3::convert(codes[j], scale, to[j % 2 * 2] + j / 2 * kTileBytes, to[j % 2 * 2 + 1] + j / 2 * kTileBytes);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        store_unit(unit_address(tiles + i / 4 * kTileBytes, at, i % 4 * 2 + part), 0, 0, 0, 0);
      }
    }
  }
};

}  // namespace deepinfer::cuda
