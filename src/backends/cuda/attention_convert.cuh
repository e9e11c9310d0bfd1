// From the codes of cached rows to BF16 tiles, by bit operations: 64 keys at a time, 256 columns (a half) by a
// warpgroup.
//
// Values are stored times kRowScale, a power of two that leaves every bit of a scale's range room: products of the
// codes' bits, which are BF16 numbers with a small exponent, and of an adjusted scale are exact. Whoever uses the tiles
// takes the factor out again.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cuda/attention_mma.cuh"
#include "ops/row_table.h"

namespace deepinfer::cuda {

inline constexpr float kRowScale = 0x1p-8f;

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

// Nibbles kAt and kAt + 4 of `word` as E2M1 bits in the lower and upper half: value * 2^-126.
template <int kAt>
__device__ __forceinline__ uint32_t e2m1_bits(uint32_t word) {
  const uint32_t sign = kAt == 3 ? word : word << (12 - 4 * kAt);
  const uint32_t rest = kAt < 2 ? word << (6 - 4 * kAt) : word >> (4 * kAt - 6);
  return (sign & 0x80008000u) | (rest & 0x01C001C0u);
}

// Rows by what a thread converts of them. Two threads share a row of 64: `part` 0 takes the even 16-byte pieces of its
// codes and 1 the odd ones, of the half of the columns that is converted.
enum class RowKind { kNone, kE4m3, kE2m1 };

// 512 E4M3 codes, 16 E8M0 scales. Piece j of 8: 16 columns, half a group.
struct E4m3Half {
  static constexpr int kPieces = 8;
  static __device__ __forceinline__ uint4 codes(const std::byte* row, int half, int part, int j) {
    return load_row16(row + half * 256 + (2 * j + part) * 16);
  }
  static __device__ __forceinline__ uint4 scales(const std::byte* row, int half) {
    const uint2 scales = __ldg(reinterpret_cast<const uint2*>(row + 512 + half * 8));
    return {scales.x, scales.y, 0, 0};
  }
  static __device__ __forceinline__ void convert(const uint4& codes, const uint4& scales, uint32_t tiles, int row,
                                                 int part, int j) {
    const uint32_t byte = __byte_perm(j < 4 ? scales.x : scales.y, 0, 0x4440 | (j & 3));
    const uint32_t scale = byte * 0x00800080u;  // the exponent of a BF16, in both halves
    const int unit = (2 * j + part) * 2;
    const uint32_t tile = tiles + (unit >> 3) * kTileBytes;
    const uint4 a = convert8(codes.x, codes.y, scale), b = convert8(codes.z, codes.w, scale);
    store_unit(unit_address(tile, row, unit & 7), a);
    store_unit(unit_address(tile, row, (unit & 7) + 1), b);
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

// 512 E2M1 codes, 32 E4M3 scales. Piece j of 4: 32 columns, two groups.
struct E2m1Half {
  static constexpr int kPieces = 4;
  static __device__ __forceinline__ uint4 codes(const std::byte* row, int half, int part, int j) {
    return load_row16(row + half * 128 + (2 * j + part) * 16);
  }
  static __device__ __forceinline__ uint4 scales(const std::byte* row, int half) {
    return load_row16(row + 256 + half * 16);
  }
  static __device__ __forceinline__ void convert(const uint4& codes, const uint4& scales, uint32_t tiles, int row,
                                                 int part, int j) {
    // Scales 4j + 2 part and the next.
    const uint32_t word = j == 0 ? scales.x : (j == 1 ? scales.y : (j == 2 ? scales.z : scales.w));
    uint32_t first, second;
    factors(part == 0 ? word : word >> 16, first, second);
    const int unit = (2 * j + part) * 4;
    const uint32_t tile = tiles + (unit >> 3) * kTileBytes;
    // All values before the first store: a store holds its registers for a while.
    const uint4 a = convert8(codes.x, first), b = convert8(codes.y, first);
    const uint4 c = convert8(codes.z, second), d = convert8(codes.w, second);
    store_unit(unit_address(tile, row, unit & 7), a);
    store_unit(unit_address(tile, row, (unit & 7) + 1), b);
    store_unit(unit_address(tile, row, (unit & 7) + 2), c);
    store_unit(unit_address(tile, row, (unit & 7) + 3), d);
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

// The registers of a thread that converts: both halves of an E2M1 row, or one half of an E4M3 row. Each is filled again
// as soon as its codes are converted, so that loads run while others are: no proxy fence may stand in between, since it
// would wait for them. (Whoever reads the tiles through the asynchronous proxy has it.)
struct RowPiece {
  static constexpr int kNarrow = E2m1Half::kPieces + 1;
  uint4 r[2 * kNarrow];

  template <typename Half>
  __device__ __forceinline__ void fill(int first, const std::byte* row, int half, int part) {
#pragma unroll
    for (int j = 0; j < Half::kPieces; ++j) r[first + j] = Half::codes(row, half, part, j);
    r[first + Half::kPieces] = Half::scales(row, half);
  }
  // Converts what r[first ...] holds; with `refill` takes that half of that row instead.
  template <typename Half>
  __device__ __forceinline__ void convert(int first, uint32_t tiles, int at, int part, bool refill,
                                          const std::byte* row, int half) {
    const uint4 scales = r[first + Half::kPieces];
    if (refill) r[first + Half::kPieces] = Half::scales(row, half);
#pragma unroll
    for (int j = 0; j < Half::kPieces; ++j) {
      Half::convert(r[first + j], scales, tiles, at, part, j);
      if (refill) r[first + j] = Half::codes(row, half, part, j);
    }
  }
  // What the conversion of a row starts with.
  __device__ __forceinline__ void fill_first(const std::byte* row, RowKind kind, int part) {
    if (kind == RowKind::kE4m3) fill<E4m3Half>(0, row, 0, part);
    if (kind == RowKind::kE2m1) {
      fill<E2m1Half>(0, row, 0, part);
      fill<E2m1Half>(kNarrow, row, 1, part);
    }
  }
  // Converts a half of `row` and starts the loads of what comes into its registers: from `next` or the row's other
  // half.
  template <int kHalf>
  __device__ __forceinline__ void step(const std::byte* row, RowKind kind, const std::byte* next, RowKind next_kind,
                                       uint32_t tiles, int at, int part) {
    if (kind == RowKind::kE2m1) {
      convert<E2m1Half>(kHalf * kNarrow, tiles, at, part, next_kind == RowKind::kE2m1, next, kHalf);
      if (kHalf == 1 && next_kind == RowKind::kE4m3) fill_first(next, next_kind, part);
    } else if (kind == RowKind::kE4m3) {
      const bool again = kHalf == 0 || next_kind == RowKind::kE4m3;
      convert<E4m3Half>(0, tiles, at, part, again, kHalf == 0 ? row : next, kHalf ^ 1);
      if (!again) fill_first(next, next_kind, part);
    } else {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const int unit = 2 * i + part;
        store_unit(unit_address(tiles + (unit >> 3) * kTileBytes, at, unit & 7), 0, 0, 0, 0);
      }
      if (kHalf == 1) fill_first(next, next_kind, part);
    }
  }
};

}  // namespace deepinfer::cuda
