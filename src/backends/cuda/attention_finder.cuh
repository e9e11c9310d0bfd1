// Where the rows of the keys to come lie: found blocks ahead of their conversion, without waiting for loads.
//
// A thread block takes tokens blockIdx.x, + gridDim.x, ...; the blocks of 64 keys of all its tokens are numbered
// through. A warpgroup writes the rows of one block after the other into a ring in shared memory; those of the first
// blocks are written by all threads at the start.
#pragma once

#include "backends/cuda/attention_pipeline.cuh"

namespace deepinfer::cuda {

inline constexpr int kFirstBlocks = 3;
inline constexpr uint64_t kNoKey = 16;   // beyond the last: a row of zeros
inline constexpr uint64_t kNoBlock = 0;  // beyond the last token

__device__ __forceinline__ const std::byte* row_of(uint64_t entry) {
  return reinterpret_cast<const std::byte*>(entry & ~uint64_t{15});
}
__device__ __forceinline__ RowKind kind_of(uint64_t entry) { return static_cast<RowKind>(entry & 15); }
__device__ __forceinline__ uint64_t row_entry(const std::byte* row, RowKind kind) {
  return reinterpret_cast<uint64_t>(row) | static_cast<uint64_t>(kind);
}

// A token of this thread block.
struct Work {
  int token = 0;
  int num_blocks = 0;  // 0: there is none
  KeyList keys;
};

// The first real token from `token` on.
__device__ inline Work next_work(const AttentionParams& p, int token) {
  Work work;
  for (; token < p.num_tokens; token += gridDim.x) {
    work.keys = key_list(p, token);
    if (work.keys.num_keys == 0) continue;
    work.token = token;
    work.num_blocks = (work.keys.num_keys + kKeysPerBlock - 1) / kKeysPerBlock;
    break;
  }
  return work;
}
// The token that the thread block's block `number` belongs to; `number` becomes the block's in the token.
__device__ inline Work work_of_block(const AttentionParams& p, int& number) {
  Work work = next_work(p, blockIdx.x);
  while (work.num_blocks != 0 && number >= work.num_blocks) {
    number -= work.num_blocks;
    work = next_work(p, work.token + gridDim.x);
  }
  return work;
}

// The rows of the first blocks, by the block's first threads; then all synchronise.
template <RowKind kWindow, RowKind kCompressed>
__device__ void find_first_rows(const AttentionParams& p, PipelineShared& s) {
  const int number = threadIdx.x / kKeysPerBlock;
  if (number >= kFirstBlocks) return;
  int block = number;
  const Work work = work_of_block(p, block);
  uint64_t entry = kNoBlock;
  if (work.num_blocks != 0) {
    const int key = block * kKeysPerBlock + threadIdx.x % kKeysPerBlock;
    const RowKind kind = row_kind<kWindow, kCompressed>(work.keys, key);
    entry = kind == RowKind::kNone ? kNoKey : row_entry(key_address(p, work.keys, work.token, key), kind);
  }
  s.rows[number][threadIdx.x % kKeysPerBlock] = entry;
}

// A thread's key of a block on its way: first the number of its row is loaded, a block later the address of the memory
// that the row is in.
struct KeyAhead {
  RowKind kind = RowKind::kNone;
  bool in_window = false;
  int32_t row = 0;
  const std::byte* const* table = nullptr;
  const std::byte* place = nullptr;
};

template <RowKind kWindow, RowKind kCompressed>
struct RowFinder {
  const AttentionParams& p;
  int at;  // the key in its block; two threads have it
  bool writes;
  Work work;
  int block = kFirstBlocks;  // of `work`, the next to start with
  const std::byte *const *window = nullptr, *const *compressed = nullptr;
  KeyAhead named, placed;
  bool named_there = false, placed_there = false;  // the blocks

  // thread: of 128
  __device__ RowFinder(const AttentionParams& params, int thread)
      : p(params), at(thread / 32 * 16 + thread % 16), writes(thread % 32 < 16) {
    work = work_of_block(p, block);
    enter();
    name();
    place();
    name();
  }
  // The rows of a block; then it starts the loads for the two after. False: there is no such block.
  __device__ __forceinline__ bool next(RowList& list) {
    uint64_t entry = placed_there ? kNoKey : kNoBlock;
    if (placed.kind != RowKind::kNone) {
      const int64_t offset = placed.in_window ? p.window.offset : p.compressed.offset;
      const int64_t bytes = placed.in_window ? p.window_row_bytes : p.compressed_row_bytes;
      const int32_t mask = (1 << (placed.in_window ? p.window.block_shift : p.compressed.block_shift)) - 1;
      const std::byte* row = placed.place + offset + (placed.row & mask) * bytes;
      entry = row_entry(row, placed.kind);
      if (placed.kind == RowKind::kBf16) prefetch_row(row);  // others are loaded a block ahead
    }
    if (writes) list[at] = entry;
    const bool there = placed_there;
    place();
    name();
    return there;
  }

 private:
  __device__ __forceinline__ void enter() {
    if (work.num_blocks == 0) return;
    window = p.window.blocks[work.token];
    if (p.compressed.blocks != nullptr) compressed = p.compressed.blocks[work.token];
  }
  __device__ __forceinline__ void name() {
    named_there = work.num_blocks != 0;
    named.kind = RowKind::kNone;
    if (!named_there) return;
    const int key = block * kKeysPerBlock + at;
    named.kind = row_kind<kWindow, kCompressed>(work.keys, key);
    named.in_window = key < work.keys.num_window;
    named.table = named.in_window ? window : compressed;
    if (named.in_window) {
      named.row = static_cast<int32_t>(work.keys.first_window_row) + key;
    } else if (named.kind != RowKind::kNone) {
      named.row = p.selected[work.token * p.selected_stride + (key - work.keys.num_window)];
    }
    if (++block == work.num_blocks) {
      work = next_work(p, work.token + gridDim.x);
      block = 0;
      enter();
    }
  }
  __device__ __forceinline__ void place() {
    placed = named;
    placed_there = named_there;
    if (placed.kind == RowKind::kNone) return;
    placed.place = placed.table[placed.row >> (placed.in_window ? p.window.block_shift : p.compressed.block_shift)];
  }
};

// The first lists are there already.
__device__ __forceinline__ void announce_first_rows(PipelineShared& s) {
  for (int n = 0; n < kFirstBlocks; ++n) warp_arrive(shared_address(&s.rows_full[n]));
}
// List n, by a warpgroup. False: there is no such block.
template <RowKind kWindow, RowKind kCompressed>
__device__ __forceinline__ bool find_rows(RowFinder<kWindow, kCompressed>& finder, PipelineShared& s, int n) {
  const int slot = n % kRowRing;
  barrier_wait(shared_address(&s.rows_empty[slot]), (n / kRowRing & 1) ^ 1);
  const bool there = finder.next(s.rows[slot]);
  warp_arrive(shared_address(&s.rows_full[slot]));
  return there;
}

}  // namespace deepinfer::cuda
