// Rows of the cluster kernel (attention_cluster.cu): where a token's keys lie, and 32 columns at a time on their way
// from there to the tiles.
#pragma once

#include "backends/cuda/attention_cluster.cuh"

namespace deepinfer::cuda {

// A load that is not put off until its first use.
template <typename T>
__device__ __forceinline__ T load_now(const T* p) {
  T x;
  if constexpr (sizeof(T) == 8) {
    asm volatile("ld.global.b64 %0, [%1];" : "=l"(x) : "l"(p));
  } else {
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(x) : "l"(p));
  }
  return x;
}

// The places of all keys, a thread a key of each kind. Three loads deep: what the token is, its blocks, its rows. The
// first are on their way when it is made.
struct RowLister {
  int64_t position, first = 0;
  const std::byte *const *window, *const *compressed = nullptr;
  int num_selected = 0, row = 0;

  __device__ __forceinline__ RowLister(const AttentionParams& p, int token, int t) {
    static_assert(kClusterThreads >= kMaxSelected);
    position = load_now(p.positions + token);
    if (p.first_window_row != nullptr) first = load_now(p.first_window_row + token);
    window = load_table(p.window, token);
    if (p.compressed.blocks == nullptr) return;
    num_selected = load_now(p.num_selected + token);
    compressed = load_table(p.compressed, token);
    if (t < p.num_selectable) row = load_now(p.selected + token * p.selected_stride + t);
  }
  // False: a padding row.
  __device__ __forceinline__ bool list(const AttentionParams& p, int t, KeyList& keys, const std::byte** rows) const {
    if (position < 0) return false;
    keys = make_key_list(position, first, num_selected, p.window_size);
    if (t < num_selected) {
      const int mask = (1 << p.compressed.block_shift) - 1;
      rows[keys.num_window + t] =
          compressed[row >> p.compressed.block_shift] + p.compressed.offset + (row & mask) * p.compressed_row_bytes;
    }
    if (t < keys.num_window) {
      const int64_t window_row = keys.first_window_row + t;
      const int mask = (1 << p.window.block_shift) - 1;
      rows[t] = window[window_row >> p.window.block_shift] + p.window.offset + (window_row & mask) * p.window_row_bytes;
    }
    return true;
  }

 private:
  static __device__ __forceinline__ const std::byte* const* load_table(const ops::RowTables& tables, int token) {
    return reinterpret_cast<const std::byte* const*>(load_now(reinterpret_cast<const int64_t*>(tables.blocks + token)));
  }
};

// 32 columns of a row on their way through a thread.
template <RowKind kWindow>
struct Item {
  uint4 x, y;
  uint32_t scale;
  RowKind kind;

  // The same loads for both kinds, from other places: no load is waited for at the end of a branch.
  __device__ __forceinline__ void load(RowKind row_kind, const std::byte* row, int chunk) {
    kind = row_kind;
    const bool wide = kind == RowKind::kE4m3;
    const std::byte* codes = row + chunk * (wide ? 32 : 16);
    const std::byte* scales = row + (wide ? kDim + (chunk & ~1) : kDim / 2 + chunk * 2);
    x = y = {};
    scale = 0;
    if (kind == RowKind::kNone) return;
    x = load_row16(codes);
    scale = __ldg(reinterpret_cast<const uint16_t*>(scales));
    if (wide) y = load_row16(codes + 16);
  }
  __device__ __forceinline__ void convert(uint32_t tile, int row, int unit, int chunk) const {
    uint32_t to[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = unit_address(tile, row, unit + i);
    if (kind == RowKind::kE4m3) {
      const uint32_t factor = scale >> chunk % 2 * 8 & 0xFF;
      E4m3::convert(x, factor, to[0], to[1]);
      E4m3::convert(y, factor, to[2], to[3]);
    } else if (kind == RowKind::kE2m1) {
      E2m1::convert(x, scale, to, 0);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) store_unit(to[i], 0, 0, 0, 0);
    }
  }
};

template <>
struct Item<RowKind::kBf16> {
  uint4 units[4];

  __device__ __forceinline__ void load(RowKind kind, const std::byte* row, int chunk) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      units[i] = {};
      if (kind == RowKind::kBf16) units[i] = load_row16(row + chunk * 64 + i * 16);
    }
  }
  __device__ __forceinline__ void convert(uint32_t tile, int row, int unit, int) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) store_unit(unit_address(tile, row, unit + i), units[i]);
  }
};

}  // namespace deepinfer::cuda
