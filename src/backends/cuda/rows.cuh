// Rows of caches on the card: where a row lies, and eight of its values at a time, written by whole warps and read by
// any thread. Packed rows of narrow widths begin at any byte; rows of whole words are read and written as words.
#pragma once

#include "backends/cuda/quantise.cuh"
#include "ops/row_table.h"

namespace deepinfer::cuda {

// ops::RowTables with the size of a row worked out by the host.
struct RowPlaces {
  std::byte* const* const* blocks;
  int64_t offset;
  int64_t row_bytes;
  int32_t block_shift;
  int32_t width;

  // Null for a padding row.
  __device__ uint8_t* row(int64_t token, int64_t r) const {
    std::byte* const* table = blocks[token];
    if (table == nullptr) return nullptr;
    const int64_t in_block = r & ((int64_t{1} << block_shift) - 1);
    return reinterpret_cast<uint8_t*>(table[r >> block_shift] + offset + in_block * row_bytes);
  }
};

inline RowPlaces places_of(const ops::RowTables& tables) {
  return {tables.blocks, tables.offset, ops::row_bytes(tables.type, tables.width), tables.block_shift,
          static_cast<int32_t>(tables.width)};
}

__device__ inline uint32_t load_word(const uint8_t* p) {
  if ((reinterpret_cast<uintptr_t>(p) & 3) == 0) return *reinterpret_cast<const uint32_t*>(p);
  return p[0] | p[1] << 8 | p[2] << 16 | static_cast<uint32_t>(p[3]) << 24;
}
__device__ inline void store_word(uint8_t* p, uint32_t word) {
  if ((reinterpret_cast<uintptr_t>(p) & 3) == 0) {
    *reinterpret_cast<uint32_t*>(p) = word;
  } else {
    p[0] = word, p[1] = word >> 8, p[2] = word >> 16, p[3] = word >> 24;
  }
}

// A row type as a compile-time choice: values [c, c + 8) of a row of `width` values, c a multiple of 8.
template <ops::RowType kType>
struct RowCodec;

template <>
struct RowCodec<ops::RowType::kF32> {
  __device__ static void read8(const uint8_t* row, int /*width*/, int c, float (&v)[8]) {
    load8(reinterpret_cast<const float*>(row) + c, v);
  }
  __device__ static void write8(uint8_t* row, int width, int c, const float (&v)[8]) {
    if (c < width) store8(reinterpret_cast<float*>(row) + c, v);
  }
};

template <>
struct RowCodec<ops::RowType::kBf16> {
  __device__ static void read8(const uint8_t* row, int /*width*/, int c, float (&v)[8]) {
    load8(reinterpret_cast<const Bf16*>(row) + c, v);
  }
  __device__ static void write8(uint8_t* row, int width, int c, const float (&v)[8]) {
    if (c < width) store8(reinterpret_cast<Bf16*>(row) + c, v);
  }
};

template <>
struct RowCodec<ops::RowType::kE4m3Group32> {
  __device__ static void read8(const uint8_t* row, int width, int c, float (&v)[8]) {
    const float scale = e8m0_value(row[width + c / 32]);
    const uint32_t words[2] = {load_word(row + c), load_word(row + c + 4)};
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = e4m3_value(words[i / 4] >> (i % 4 * 8)) * scale;
  }
  __device__ static void write8(uint8_t* row, int width, int c, const float (&v)[8]) {
    float codes[8];
    const float scale = quantise8<E4m3Group32>(codes, v);
    if (c >= width) return;
    uint32_t words[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; ++i) words[i / 4] |= e4m3_code(codes[i]) << (i % 4 * 8);
    store_word(row + c, words[0]);
    store_word(row + c + 4, words[1]);
    if (c % 32 == 0) row[width + c / 32] = static_cast<uint8_t>(E4m3Group32::scale_code(scale));
  }
};

// Of both E2M1 types: scales of kGroup values, as the scale's own code.
template <typename Quantiser, int kGroup>
struct E2m1Codec {
  __device__ static void read8(const uint8_t* row, int width, int c, float (&v)[8]) {
    const uint32_t code = row[width / 2 + c / kGroup];
    const float scale = kGroup == 16 ? e4m3_value(code) : e8m0_value(code);
    const uint32_t word = load_word(row + c / 2);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = e2m1_value(word >> (i * 4)) * scale;
  }
  __device__ static void write8(uint8_t* row, int width, int c, const float (&v)[8]) {
    float codes[8];
    const float scale = quantise8<Quantiser>(codes, v);
    if (c >= width) return;
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) word |= e2m1_code(codes[i]) << (i * 4);
    store_word(row + c / 2, word);
    if (c % kGroup == 0) row[width / 2 + c / kGroup] = static_cast<uint8_t>(Quantiser::scale_code(scale));
  }
};
template <>
struct RowCodec<ops::RowType::kE2m1Group16> : E2m1Codec<E2m1Group16, 16> {};
template <>
struct RowCodec<ops::RowType::kE2m1Group32> : E2m1Codec<E2m1Group32, 32> {};

// Calls body with the type's codec.
template <typename Body>
void with_row_codec(ops::RowType type, Body&& body) {
  using enum ops::RowType;
  switch (type) {
    case kF32:
      return body(RowCodec<kF32>());
    case kBf16:
      return body(RowCodec<kBf16>());
    case kE4m3Group32:
      return body(RowCodec<kE4m3Group32>());
    case kE2m1Group16:
      return body(RowCodec<kE2m1Group16>());
    case kE2m1Group32:
      return body(RowCodec<kE2m1Group32>());
  }
}

}  // namespace deepinfer::cuda
