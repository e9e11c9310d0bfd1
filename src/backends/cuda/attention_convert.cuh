// From the codes of cached rows to BF16 tiles, by bit operations: 64 keys at a time, 256 columns (a half) by a warpgroup.
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
__device__ __forceinline__ uint2 load_row8(const std::byte* p) { return __ldg(reinterpret_cast<const uint2*>(p)); }
__device__ __forceinline__ void store_unit(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
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

// What a thread holds of a row: a quarter of the row, half of the half that is converted. Of the two threads of a row,
// `part` 0 takes the even 16-byte pieces and 1 the odd ones.
struct RowPiece {
  uint4 codes[8];
  uint4 scales;
};

// 512 E4M3 codes, 16 E8M0 scales.
struct E4m3Rows {
  static __device__ __forceinline__ void load(RowPiece& piece, const std::byte* row, int half, int part) {
#pragma unroll
    for (int j = 0; j < 8; ++j) piece.codes[j] = load_row16(row + half * 256 + (2 * j + part) * 16);
    const uint2 scales = load_row8(row + 512 + half * 8);
    piece.scales.x = scales.x;
    piece.scales.y = scales.y;
  }
  // Piece j: 16 columns, half a group.
  static __device__ __forceinline__ void convert(const RowPiece& piece, uint32_t tiles, int row, int part) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t byte = __byte_perm(j < 4 ? piece.scales.x : piece.scales.y, 0, 0x4440 | (j & 3));
      const uint32_t scale = byte * (0x00800080u);  // the exponent of a BF16, in both halves
      const int unit = (2 * j + part) * 2;
      const uint32_t tile = tiles + (unit >> 3) * kTileBytes;
      convert8(unit_address(tile, row, unit & 7), piece.codes[j].x, piece.codes[j].y, scale);
      convert8(unit_address(tile, row, (unit & 7) + 1), piece.codes[j].z, piece.codes[j].w, scale);
    }
  }
  static __device__ __forceinline__ void convert8(uint32_t to, uint32_t low, uint32_t high, uint32_t scale) {
    store_unit(to, value<0, 1>(low, scale), value<2, 3>(low, scale), value<0, 1>(high, scale),
               value<2, 3>(high, scale));
  }
  // Two steps: a scale of 2^16 and more would not bear the whole factor.
  template <int kLow, int kHigh>
  static __device__ __forceinline__ uint32_t value(uint32_t word, uint32_t scale) {
    return multiply_bf16(multiply_bf16(e4m3_bits<kLow, kHigh>(word), two_to(120 - 8)), scale);
  }
};

// 512 E2M1 codes, 32 E4M3 scales.
struct E2m1Rows {
  static __device__ __forceinline__ void load(RowPiece& piece, const std::byte* row, int half, int part) {
#pragma unroll
    for (int j = 0; j < 4; ++j) piece.codes[j] = load_row16(row + half * 128 + (2 * j + part) * 16);
    piece.scales = load_row16(row + 256 + half * 16);
  }
  // Piece j: 32 columns, two groups.
  static __device__ __forceinline__ void convert(const RowPiece& piece, uint32_t tiles, int row, int part) {
    const uint32_t words[4] = {piece.scales.x, piece.scales.y, piece.scales.z, piece.scales.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      // Scales 2 (2j + part) and the next, times 2^118.
      const uint32_t pair = e4m3_bits<0, 1>(part == 0 ? words[j] : words[j] >> 16);
      const uint32_t scales = multiply_bf16(multiply_bf16(pair, two_to(119)), two_to(119));
      const uint32_t first = __byte_perm(scales, 0, 0x1010), second = __byte_perm(scales, 0, 0x3232);
      const int unit = (2 * j + part) * 4;
      const uint32_t tile = tiles + (unit >> 3) * kTileBytes;
      convert8(unit_address(tile, row, unit & 7), piece.codes[j].x, first);
      convert8(unit_address(tile, row, (unit & 7) + 1), piece.codes[j].y, first);
      convert8(unit_address(tile, row, (unit & 7) + 2), piece.codes[j].z, second);
      convert8(unit_address(tile, row, (unit & 7) + 3), piece.codes[j].w, second);
    }
  }
  static __device__ __forceinline__ void convert8(uint32_t to, uint32_t word, uint32_t scale) {
    const uint32_t v04 = multiply_bf16(e2m1_bits<0>(word), scale), v15 = multiply_bf16(e2m1_bits<1>(word), scale);
    const uint32_t v26 = multiply_bf16(e2m1_bits<2>(word), scale), v37 = multiply_bf16(e2m1_bits<3>(word), scale);
    store_unit(to, __byte_perm(v04, v15, 0x5410), __byte_perm(v26, v37, 0x5410), __byte_perm(v04, v15, 0x7632),
               __byte_perm(v26, v37, 0x7632));
  }
};

__device__ __forceinline__ void clear_row(uint32_t tiles, int row, int part) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int unit = 2 * i + part;
    store_unit(unit_address(tiles + (unit >> 3) * kTileBytes, row, unit & 7), 0, 0, 0, 0);
  }
}

}  // namespace deepinfer::cuda
