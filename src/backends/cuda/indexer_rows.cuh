// What the kernels of index_select share: the arguments as they see them, which rows a token may choose from, and the
// order of scores.
//
// Scores are kept as unsigned integers that compare as the floats do; -0 equals +0, and NaN, whatever its sign, comes
// last. A token's scores lie one after the other, numbered 0..count: by row, or, where candidates restrict the choice,
// by place in the list of candidate blocks.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "ops/indexer.h"

namespace deepinfer::cuda {

// Scores that share an entry of IndexScores::maxima, unless candidate blocks of another size are built from them.
inline constexpr int kMaximaRows = 8;

struct IndexChoice {
  std::byte* const* const* blocks = nullptr;  // [num_tokens]
  const int64_t* positions = nullptr;
  int64_t ratio = 1;
  // Candidates that restrict the choice; null: every visible row.
  const int32_t* candidates = nullptr;
  int64_t candidate_stride = 0;
  int32_t candidate_block = 0;
  const int32_t* num_candidates = nullptr;

  __device__ int64_t visible(int64_t token) const {
    const int64_t position = positions[token];
    const bool is_padding = position < 0 || blocks[token] == nullptr;
    return is_padding ? 0 : static_cast<uint32_t>(position + 1) / static_cast<uint32_t>(ratio);
  }
  // How many rows the token may choose from. The newest block may be visible in part.
  __device__ int64_t count(int64_t token) const {
    const int64_t rows = visible(token);
    if (candidates == nullptr || rows == 0) return rows;
    const int32_t num_blocks = num_candidates[token];
    if (num_blocks <= 0) return 0;
    const int64_t last_end = (int64_t{candidates[token * candidate_stride + num_blocks - 1]} + 1) * candidate_block;
    return int64_t{num_blocks} * candidate_block - (last_end > rows ? last_end - rows : 0);
  }
  __device__ int64_t row(int64_t token, int64_t i) const {
    if (candidates == nullptr) return i;
    const auto at = static_cast<uint32_t>(i), size = static_cast<uint32_t>(candidate_block);
    return int64_t{candidates[token * candidate_stride + at / size]} * size + at % size;
  }
};

// Scratch for the scores of tokens [first, first + rows) of a step.
struct IndexScores {
  uint32_t* values = nullptr;  // [rows, stride]
  int64_t stride = 0;          // a multiple of 64
  uint32_t* maxima = nullptr;  // [rows, maxima_stride], over runs of a row's scores
  int64_t maxima_stride = 0;
  int64_t first = 0;
  int64_t rows = 0;

  __device__ uint32_t* of(int64_t token) const { return values + (token - first) * stride; }
  __device__ uint32_t* maxima_of(int64_t token) const { return maxima + (token - first) * maxima_stride; }
};

struct IndexScoreParams {
  IndexChoice choice;
  IndexScores scores;
  int64_t unscored = 0;  // tokens that choose from so few rows select all of them and need no scores
  ConstTensorView q;
  ConstTensorView head_weights;
  ops::RowTables keys;
  int64_t row_bytes = 0;
  int32_t num_heads = 0;
  int32_t head_dim = 0;

  // Scores to compute for the token.
  __device__ int64_t count(int64_t token) const {
    const int64_t rows = choice.count(token);
    return rows <= unscored ? 0 : rows;
  }
};

// Where the keys with a token's scores place * kKeysPerPlace and on lie, which are neighbours there: a whole
// candidate block, if there are candidates. Beyond the last of `count` scores: where that lies.
template <int kRowBytes, int kKeysPerPlace>
__device__ __forceinline__ const std::byte* find_place(const IndexScoreParams& p, int64_t token,
                                                       std::byte* const* table, int count, int place) {
  const int here = min(place, (count - 1) / kKeysPerPlace);
  const int32_t* candidates = p.choice.candidates;
  const int64_t block = candidates == nullptr ? here : candidates[token * p.choice.candidate_stride + here];
  const int64_t row = block * kKeysPerPlace;
  return table[row >> p.keys.block_shift] + p.keys.offset +
         (row & ((int64_t{1} << p.keys.block_shift) - 1)) * kRowBytes;
}

__device__ inline uint32_t ordered_score(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  const uint32_t flipped = static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u;
  return x != x ? 0u : bits ^ flipped;
}

__device__ inline float load_element(const ConstTensorView& view, int64_t row, int64_t col) {
  const int64_t i = row * view.stride + col;
  if (view.type == ElementType::kF32) return reinterpret_cast<const float*>(view.data)[i];
  return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(view.data)[i]);
}

}  // namespace deepinfer::cuda
