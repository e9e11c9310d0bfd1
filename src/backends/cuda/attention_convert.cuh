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

// 32 columns of a row, four 16-byte units of a tile: what a thread converts at a time. Eight threads side by side take
// a half of a row, so that their loads are whole lines. Their units then lie in four tiles, two threads a tile: threads
// of different tiles store in different order (`turn`, 0 ... 3), lest they meet in the same banks. Units go to to[0 ...
// 3] + skip.
template <typename T>
__device__ __forceinline__ void turn_left(T (&x)[4], int turn) {
  const bool one = turn & 1, two = turn & 2;
  const T a = one ? x[1] : x[0], b = one ? x[2] : x[1], c = one ? x[3] : x[2], d = one ? x[0] : x[3];
  x[0] = two ? c : a, x[1] = two ? d : b, x[2] = two ? a : c, x[3] = two ? b : d;
}

struct E4m3 {
  // Of 32 columns, whose scale is an E8M0.
  static __device__ __forceinline__ void convert(const uint4& a, const uint4& b, uint32_t scale, int turn,
                                                 const uint32_t (&to)[4], int skip) {
    uint32_t low[4] = {a.x, a.z, b.x, b.z}, high[4] = {a.y, a.w, b.y, b.w};
    turn_left(low, turn);
    turn_left(high, turn);
    const uint32_t factor = scale * 0x00800080u;  // the exponent of a BF16, in both halves
#pragma unroll
    for (int i = 0; i < 4; ++i) store_unit(to[i] + skip, convert8(low[i], high[i], factor));
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

struct E2m1 {
  // Of 32 columns, whose two scales are E4M3.
  static __device__ __forceinline__ void convert(const uint4& codes, uint32_t scales, int turn, const uint32_t (&to)[4],
                                                 int skip) {
    uint32_t first, second;
    factors(scales, first, second);
    uint32_t word[4] = {codes.x, codes.y, codes.z, codes.w};
    turn_left(word, turn);
    const bool a = turn & 2, b = (turn + 1) & 2;
    const uint32_t factor[4] = {a ? second : first, b ? second : first, a ? first : second, b ? first : second};
#pragma unroll
    for (int i = 0; i < 4; ++i) store_unit(to[i] + skip, convert8(word[i], factor[i]));
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
__device__ __forceinline__ void load_if(bool there, uint32_t& x, const std::byte* from) {  // 2 bytes
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p ld.global.nc.u16 %0, [%1];\n}\n"
               : "+r"(x)
               : "l"(from), "r"(static_cast<int>(there)));
}

// 32 columns of a row, chunk `chunk` of 16, on their way through a thread.
struct RowChunk {
  uint4 a = {}, b = {};
  uint32_t scales = 0;

  __device__ __forceinline__ void load(const std::byte* row, RowKind kind, int chunk) {
    const bool there = kind != RowKind::kNone, wide = kind == RowKind::kE4m3;
    const std::byte* codes = row + chunk * (wide ? 32 : 16);
    load_if(there, a, codes);
    load_if(there, scales, row + (wide ? 512 + (chunk & ~1) : 256 + chunk * 2));
    load_if(wide, b, codes + 16);
  }
  __device__ __forceinline__ void convert(RowKind kind, int chunk, int turn, const uint32_t (&to)[4], int skip) const {
    if (kind == RowKind::kE2m1) {
      E2m1::convert(a, scales, turn, to, skip);
    } else if (kind == RowKind::kE4m3) {
      E4m3::convert(a, b, scales >> chunk % 2 * 8 & 0xFF, turn, to, skip);
    } else {
#pragma unroll
      for (int unit = 0; unit < 4; ++unit) store_unit(to[unit] + skip, 0, 0, 0, 0);
    }
  }
};

}  // namespace deepinfer::cuda
