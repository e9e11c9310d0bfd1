// What products with 128 tokens a block and more do otherwise than those with fewer: how a block comes by the sum of
// all parts where registers have room for those of one, and how the copy engine stores outputs while the next item is
// on its way.
//
// A warpgroup's staging in shared memory serves both: boxes of outputs and, between the parts of an item, some of its
// total.
#pragma once

#include "backends/cuda/gemm_epilogue.cuh"
#include "backends/cuda/linear_gemm.cuh"

namespace deepinfer::cuda {

// One warpgroup's 64 outputs of kTokens tokens, rounded to BF16, as a box at `to`: [token][64], 128-byte swizzle.
template <int kTokens>
__device__ __forceinline__ void stage_box(float* to, const float* sums, float scale, int thread) {
  const int warp = thread / 32, lane = thread % 32;
  const int to_token = lane % 8 + lane / 16 * 8, to_unit = 2 * warp + lane / 8 % 2;  // as in write_rounded
  const uint32_t base = shared_address(to);
#pragma unroll
  for (int j = 0; j < kTokens / 16; ++j) {
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs[i] = pack_bf16(sums[8 * j + 2 * i] * scale, sums[8 * j + 2 * i + 1] * scale);
    }
    const int token = 16 * j + to_token;
    store_transposed(base + token * 128 + ((to_unit ^ (token % 8)) << 4), pairs);
  }
}

// One warpgroup's 64 outputs from `first_output` on of N tokens, in boxes of kTokens. `staging`: kStaging floats at a
// multiple of 1024 bytes.
template <int N, int kTokens, int kStaging>
__device__ __forceinline__ void write_boxes(const OutputFormat& out, const CUtensorMap* map, const float (&d)[N / 2],
                                            int first_token, int first_output, float* staging, int barrier,
                                            int thread) {
  constexpr int kFloats = box_floats(kTokens), kBoxes = N / kTokens, kAtOnce = kStaging / kFloats;
  const int num_boxes = (min(out.num_tokens - first_token, N) + kTokens - 1) / kTokens;
#pragma unroll
  for (int first = 0; first < kBoxes; first += kAtOnce) {
    if (first >= num_boxes) break;
    if (thread == 0) wait_for_reads_of_stores();
    sync_threads(barrier, 128);
#pragma unroll
    for (int i = 0; i < kAtOnce && first + i < kBoxes; ++i) {
      stage_box<kTokens>(staging + i * kFloats, d + (first + i) * kTokens / 2, out.scale, thread);
    }
    fence_async_proxy();
    sync_threads(barrier, 128);
    if (thread != 0) continue;
    for (int i = 0; i < kAtOnce && first + i < num_boxes; ++i) {
      store_box(map, first_output, first_token + (first + i) * kTokens, shared_address(staging + i * kFloats));
    }
  }
}

// The sum of the parts so far of an item whose parts one block sums one after the other. With 256 tokens registers have
// no room for all of it beside the sums of a part: some stays there, some lies in the staging, and what is left, a
// quarter or so, in memory that the L2 holds. More of it there would cost: all blocks write and read at the same time.
// A thread reads what it wrote itself.
template <int N, int kStaging>
class RunningTotal {
  static constexpr int kConsumers = 256, kGroups = N / 8;  // of eight tokens, four sums a thread
  static constexpr int kHeld = N <= 128 ? kGroups : 9;
  static constexpr int kRoom = kStaging / (4 * 128);
  static constexpr int kStaged = kGroups - kHeld < kRoom ? kGroups - kHeld : kRoom;

 public:
  // Of this thread. `memory`: 128 * N floats a block; `staging`: the warpgroup's.
  __device__ __forceinline__ RunningTotal(float4* memory, float* staging)
      : memory_(memory + blockIdx.x * (kGroups * kConsumers) + threadIdx.x),
        staged_(reinterpret_cast<float4*>(staging) + threadIdx.x % 128) {}

  // Before an item's first keep(): boxes of the item before may still be read. `barrier`: the warpgroup's.
  __device__ __forceinline__ void begin(int barrier) const {
    if constexpr (kStaged > 0) {
      if (threadIdx.x % 128 == 0) wait_for_reads_of_stores();
      sync_threads(barrier, 128);
    }
  }
  __device__ __forceinline__ void keep(const float (&d)[N / 2]) {
#pragma unroll
    for (int i = 0; i < 4 * kHeld; ++i) held_[i] = d[i];
#pragma unroll
    for (int g = kGroups - 1; g >= kHeld; --g) {
      const float4 x = make_float4(d[4 * g], d[4 * g + 1], d[4 * g + 2], d[4 * g + 3]);
      if (g < kHeld + kStaged) {
        staged_[(g - kHeld) * 128] = x;
      } else {
        __stcg(memory_ + g * kConsumers, x);
      }
    }
  }
  __device__ __forceinline__ void add_to(float (&d)[N / 2]) const {
#pragma unroll
    for (int i = 0; i < 4 * kHeld; ++i) d[i] = held_[i] + d[i];
#pragma unroll
    for (int g = kGroups - 1; g >= kHeld; --g) {
      const float4 x = g < kHeld + kStaged ? staged_[(g - kHeld) * 128] : __ldcg(memory_ + g * kConsumers);
      d[4 * g] = x.x + d[4 * g], d[4 * g + 1] = x.y + d[4 * g + 1];
      d[4 * g + 2] = x.z + d[4 * g + 2], d[4 * g + 3] = x.w + d[4 * g + 3];
    }
  }

 private:
  float4* memory_;
  float4* staged_;
  float held_[4 * kHeld];
};

// An item that is one part of its sums. The blocks of all parts share the tokens out among themselves, 32 by 32: each
// leaves in memory what it has of the others' tokens, waits for what they have of its own and adds that up, the parts
// in the order of their index. Waiting ends for the reason that exchange_in_memory gives.
template <int N, int kStaging>
__device__ __forceinline__ void finish_share(const float (&d)[N / 2], const GemmParams& params, const GemmTask& task,
                                             const Item& item, float* staging) {
  constexpr int kTokens = box_tokens(N, true), kBox = box_floats(kTokens);
  constexpr int kConsumers = 256, kGroups = kTokens / 8, kShares = N / kTokens, kSums = kTokens / 2;
  constexpr int kAtOnce = N == kManyTokens ? 4 : 1;  // parts; with more tokens registers are full
  static_assert(kStaging >= kShares / 2 * kBox);
  const int group = threadIdx.x / 128, thread = threadIdx.x % 128, num_parts = task.num_parts;
  const int first_token = item.token_block * N, first_output = (2 * item.block_row + group) * kTileRows;
  const int num_shares = min(kShares, (task.out.num_tokens - first_token + kTokens - 1) / kTokens);
  float4* sums = params.partials + threadIdx.x +
                 (task.first_partial + static_cast<int64_t>(item.block) * num_parts) * (N / 8) * kConsumers;
  const auto left = [&](int part, int share, int g) {
    return sums + ((part * kShares + share) * kGroups + g) * kConsumers;
  };
  unsigned* counter = params.counters + task.first_counter + item.block;
  int owner = 0;
#pragma unroll
  for (int share = 0; share < kShares; ++share) {
    if (owner != item.part && share < num_shares) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const float* x = d + share * kSums + 4 * g;
        __stcg(left(item.part, share, g), make_float4(x[0], x[1], x[2], x[3]));
      }
    }
    if (++owner == num_parts) owner = 0;
  }
  if (thread == 0) wait_for_reads_of_stores();  // of the staging, for an item before
  sync_threads(1, kConsumers);
  if (threadIdx.x == 0) {
    count_in_circle_unseen(counter, 2 * num_parts);
    while (count_of_arrivals(counter) < static_cast<unsigned>(num_parts)) {
    }
  }
  sync_threads(1, kConsumers);
  if (threadIdx.x == 0) count_in_circle_unseen(counter, 2 * num_parts);
  if (first_output >= task.out.num_outputs) return;
  float* box = staging;
#pragma unroll 1
  for (int share = item.part; share < num_shares; share += num_parts, box += kBox) {
    float own[kSums], sum[kSums];
#pragma unroll
    for (int s = 0; s < kShares; ++s) {
      if (s == 0 || s == share) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) own[i] = d[s * kSums + i];
      }
    }
#pragma unroll 1
    for (int part = 0; part < num_parts; part += kAtOnce) {
      float4 x[kAtOnce][kGroups];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const bool others = part + i != item.part && part + i < num_parts;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          x[i][g] = make_float4(own[4 * g], own[4 * g + 1], own[4 * g + 2], own[4 * g + 3]);
          if (others) x[i][g] = __ldcg(left(part + i, share, g));
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (part + i >= num_parts) break;
        const bool start = part + i == 0;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          add_part(sum + 4 * g, x[i][g], start);
        }
      }
    }
    if (task.stores_boxes) {
      stage_box<kTokens>(box, sum, task.out.scale, thread);
    } else {
      write_outputs<kTokens>(task.out, sum, first_token + share * kTokens, first_output, staging, 2 + group, thread);
    }
  }
  if (!task.stores_boxes) return;
  fence_async_proxy();
  sync_threads(2 + group, 128);
  if (thread != 0) return;
  box = staging;
  for (int share = item.part; share < num_shares; share += num_parts, box += kBox) {
    store_box(&params.outputs[item.task], first_output, first_token + share * kTokens, shared_address(box));
  }
}

}  // namespace deepinfer::cuda
