// How products with up to 64 tokens a block come by the sum of all parts, where blocks have one part each: a block adds
// up its share of the tokens, eight by eight, and sends the others' shares to those who do.
//
// Two ways, with the same bits. Through memory (exchange.cuh); and between the blocks of a cluster, from registers to
// shared memory, which is faster for eight parts. But a cluster starts only where all of its blocks find room, and
// where the card is full of blocks of the kernel before that costs more than it brings (7.4 us instead of 5.8 for the
// first projections of one token, H200).
#pragma once

#include "backends/cuda/cluster.cuh"
#include "backends/cuda/exchange.cuh"
#include "backends/cuda/gemm_epilogue.cuh"
#include "backends/cuda/gemm_mainloop.cuh"
#include "backends/cuda/linear_gemm.cuh"

namespace deepinfer::cuda {

// A block's place among the parts of its sums, and what it adds up: the sets of eight tokens first_set ... end_set - 1.
// Where parts outnumber the sets, part s adds up set s, and the last parts nothing.
template <int N, int kGroups>
struct PartOfSum {
  static constexpr int kSets = N / 8, kConsumers = kGroups * 128;
  int part, num_parts;
  int first_token, row_tile;  // of the block, of this thread's warpgroup
  int num_sets;               // that hold tokens
  int first_set, end_set;

  __device__ __forceinline__ PartOfSum(const GemmTask& task, const Item& item)
      : part(item.part),
        num_parts(task.num_parts),
        first_token(item.token_block * N),
        row_tile(kGroups * item.block_row + static_cast<int>(threadIdx.x) / 128),
        num_sets(min(kSets, (task.out.num_tokens - first_token + 7) / 8)) {
    const int sets_of_part = (num_sets + num_parts - 1) / num_parts;
    first_set = min(part * sets_of_part, num_sets);
    end_set = min(first_set + sets_of_part, num_sets);
  }
  __device__ __forceinline__ bool is_own(int set) const { return set >= first_set && set < end_set; }
};

__device__ __forceinline__ float4 four_sums(const float* d) { return make_float4(d[0], d[1], d[2], d[3]); }

// Sums of kTurn sets from `first` on, those of them that the block adds up.
template <int kTurn, int N, int kGroups>
__device__ __forceinline__ void write_sets(const GemmTask& task, const PartOfSum<N, kGroups>& place,
                                           const float (&sum)[4 * kTurn], int first, float* staging) {
  OutputFormat out = task.out;
  out.num_tokens = min(out.num_tokens, place.first_token + 8 * place.end_set);
  write_outputs<8 * kTurn>(out, sum, place.first_token + 8 * first, place.row_tile * kTileRows, staging,
                           2 + threadIdx.x / 128, threadIdx.x % 128);
}

// --- through memory ------------------------------------------------------------------------------------------------

// Where this thread's sums lie: [part][N / 8 sets of eight tokens][consumers].
template <int N, int kGroups>
struct LeftSums {
  uint4* first;

  __device__ __forceinline__ LeftSums(const GemmParams& params, const GemmTask& task, const Item& item)
      : first(params.left + threadIdx.x +
              (task.first_partial + static_cast<int64_t>(item.block) * task.num_parts) * (N / 8) * (kGroups * 128)) {}
  __device__ __forceinline__ uint4* at(int part, int set) const {
    return first + (part * (N / 8) + set) * (kGroups * 128);
  }
};

// kTurn sets at a time, and the values of kAtOnce parts.
template <int kTurn, int kAtOnce, int N, int kGroups>
__device__ __forceinline__ void add_left_sums(const float (&d)[N / 2], const GemmTask& task,
                                              const LeftSums<N, kGroups>& left, const PartOfSum<N, kGroups>& place,
                                              float* staging) {
#pragma unroll 1
  for (int first = place.first_set; first < place.end_set; first += kTurn) {
    uint4 own[kTurn];
    float sum[4 * kTurn];
#pragma unroll
    for (int s = 0; s < N / 8; ++s) {
#pragma unroll
      for (int j = 0; j < kTurn && j <= s; ++j) {
        if (s == j || s == first + j) own[j] = to_exchanged(four_sums(d + 4 * s));
      }
    }
#pragma unroll 1
    for (int part = 0; part < place.num_parts; part += kAtOnce) {
      const auto is_others = [&](int i, int j) {
        return part + i < place.num_parts && part + i != place.part && first + j < place.end_set;
      };
      uint4 x[kAtOnce][kTurn];
      bool all_there;
      do {
        all_there = true;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
          for (int j = 0; j < kTurn; ++j) {
            x[i][j] = own[j];
            if (is_others(i, j)) x[i][j] = load_exchanged(left.at(part + i, first + j));
          }
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
          for (int j = 0; j < kTurn; ++j) all_there &= is_there(x[i][j]);
        }
      } while (!all_there);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (part + i >= place.num_parts) break;
#pragma unroll
        for (int j = 0; j < kTurn; ++j) {
          add_part(sum + 4 * j, from_exchanged(x[i][j]), part + i == 0);
          if (is_others(i, j)) store_exchanged(left.at(part + i, first + j), make_uint4(0, 0, 0, 0));
        }
      }
    }
    write_sets<kTurn>(task, place, sum, first, staging);
  }
}

// Waiting ends, because a block's parts are consecutive items, every multiprocessor takes items in ascending order, and
// all blocks of the grid are resident together: the parts of the first block that is not complete are running or done.
template <int N, int kGroups>
__device__ __forceinline__ void exchange_in_memory(const float (&d)[N / 2], const GemmParams& params,
                                                   const GemmTask& task, const Item& item, float* staging) {
  const PartOfSum<N, kGroups> place(task, item);
  if (place.row_tile >= task.row_tiles) return;
  const LeftSums<N, kGroups> left(params, task, item);
#pragma unroll
  for (int s = 0; s < N / 8; ++s) {
    if (s < place.num_sets && !place.is_own(s)) {
      store_exchanged(left.at(place.part, s), to_exchanged(four_sums(d + 4 * s)));
    }
  }
  if constexpr (N == kFewTokens) {
    if (place.num_parts <= 3) return add_left_sums<4, 3>(d, task, left, place, staging);
  }
  add_left_sums<1, 8>(d, task, left, place, staging);
}

// --- in a cluster --------------------------------------------------------------------------------------------------

// In shared memory, for one item: [part][consumers] of the set that the block adds up, and what reports that they came.
struct Inbox {
  float4* sums;
  uint32_t barrier;  // one arrival
};
// Parts are the cluster's blocks, at least as many as sets; every thread of all of them has called arrive_in_cluster().
template <int N, int kGroups>
__device__ __forceinline__ void exchange_in_cluster(const float (&d)[N / 2], const GemmTask& task, const Item& item,
                                                    const Inbox& inbox, float* staging) {
  const PartOfSum<N, kGroups> place(task, item);
  constexpr int kConsumers = PartOfSum<N, kGroups>::kConsumers;
  const float4* received = inbox.sums + threadIdx.x;
  float4* own = inbox.sums + place.part * kConsumers + threadIdx.x;
  wait_for_cluster();  // their barriers are there
#pragma unroll
  for (int s = 0; s < N / 8; ++s) {
    if (s == place.part) {
      *own = four_sums(d + 4 * s);
    } else if (s < place.num_sets) {
      send(address_in(shared_address(own), s), four_sums(d + 4 * s), address_in(inbox.barrier, s));
    }
  }
  if (place.part >= place.num_sets) return;
  if (threadIdx.x == 0) barrier_expect(inbox.barrier, (place.num_parts - 1) * kConsumers * 16);
  barrier_wait(inbox.barrier, 0);
  if (place.row_tile >= task.row_tiles) return;
  float sum[4];
#pragma unroll 4
  for (int part = 0; part < place.num_parts; ++part) add_part(sum, received[part * kConsumers], part == 0);
  write_sets<1>(task, place, sum, place.part, staging);
}

}  // namespace deepinfer::cuda
