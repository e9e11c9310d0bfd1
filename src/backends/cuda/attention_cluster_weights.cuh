// Scores and weights of the cluster kernel (attention_cluster.cu): every block has those of its own keys, and sends the
// others what they need of them.
#pragma once

#include "backends/cuda/attention_cluster.cuh"

namespace deepinfer::cuda {

// The scores of the own keys, by 128 columns as soon as those are there: what the largest of each piece and the weights
// come from.
__device__ inline void own_scores(ClusterShared& s, float (&w)[40]) {
  const uint32_t q = shared_address(s.q_then_values), keys = shared_address(s.keys_then_weights);
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) {
    sync_threads(kColumnsThere + stage, kClusterThreads);
    fence_async_proxy();  // for those that wrote: it would make them wait for their loads
    wgmma_fence();
#pragma unroll
    for (int i = 8 * stage; i < 8 * stage + 8; ++i) {
      mma_scores(w, columns_descriptor(q + i / 4 * kTileBytes) + i % 4 * 2,
                 columns_descriptor(keys + i / 4 * kOwnTileBytes) + i % 4 * 2, i > 0);
    }
    wgmma_commit();
  }
  wgmma_wait<0>();
  wgmma_hold(w);
}

// Numbers of the own keys, combined over the four threads of a row, to all blocks: two a thread.
template <int kCount, typename Combine, typename Place>
__device__ __forceinline__ void send_all(Place& to, uint64_t& there, float (&x)[2][kCount], const int (&heads)[2],
                                         int c, Combine combine) {
#pragma unroll
  for (int step = 1; step <= 2; ++step) {
#pragma unroll
    for (int i = 0; i < 2 * kCount; ++i) {
      float& part = x[i / kCount][i % kCount];
      part = combine(part, __shfl_xor_sync(~0u, part, step));
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const uint32_t place = shared_address(&to[heads[r]]), barrier = shared_address(&there);
    send_numbers(place, barrier, 2 * c, x[r]);
    send_numbers(place, barrier, 2 * c + 1, x[r]);
  }
}

__device__ inline void send_largest(ClusterShared& s, const float (&w)[40], int rank, const int (&heads)[2], int c) {
  const int in_first = 4 * (first_block_of(rank) + 1) - rank * kOwnPieces;  // pieces
  float most[2][2] = {{-INFINITY, -INFINITY}, {-INFINITY, -INFINITY}};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int i = 0; i < kOwnPieces; ++i) {
      const int at = 8 * i + 2 * r;
      const float m = fmaxf(fmaxf(w[at], w[at + 1]), fmaxf(w[at + 4], w[at + 5]));
      most[r][0] = i < in_first ? fmaxf(most[r][0], m) : most[r][0];
      most[r][1] = i < in_first ? most[r][1] : fmaxf(most[r][1], m);
    }
  }
  send_all(s.largest[rank], s.largest_there, most, heads, c, [](float a, float b) { return fmaxf(a, b); });
}

// The running maximum after a block of 64.
__device__ __forceinline__ float largest_up_to(const ClusterShared& s, int block, int head) {
  float most = kNoScore;
#pragma unroll
  for (int rank = 0; rank < kCluster; ++rank) {
    const float2 x = s.largest[rank][head];
    if (first_block_of(rank) <= block) most = fmaxf(most, x.x);
    if (first_block_of(rank) < block) most = fmaxf(most, x.y);
  }
  return most;
}

template <RowKind kWindow>
__device__ void send_weights(ClusterShared& s, const float (&w)[40], int rank, const int (&heads)[2], int c,
                             std::byte* scratch) {
  const int first_piece = rank * kOwnPieces, first_block = first_block_of(rank);
  float running[2][2], sums[2][kOwnPieces];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    running[0][r] = largest_up_to(s, first_block, heads[r]);
    running[1][r] = largest_up_to(s, first_block + 1, heads[r]);
  }
  uint32_t words[kOwnPieces][4];
#pragma unroll
  for (int i = 0; i < kOwnPieces; ++i) {
    const int piece = first_piece + i;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float most = piece / 4 == first_block ? running[0][r] : running[1][r];
      float e[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        e[k] = weight_of(w[8 * i + 2 * r + k / 2 * 4 + k % 2], most, score_scale(kWindow));
      }
      words[i][r] = pack_bf16(e[0], e[1]);
      words[i][2 + r] = pack_bf16(e[2], e[3]);
      sums[r][i] = thread_sum(e[0], e[1], e[2], e[3]);
    }
  }
  // Thread c of the quad: half c / 2 of head c % 2.
  transpose_quads(words, c);
#pragma unroll
  for (int i = 0; i < kOwnPieces; ++i) {
    *reinterpret_cast<uint4*>(scratch + weights_address(0, first_piece + i, heads[0] + c % 2 * 8, c / 2)) =
        uint4{words[i][0], words[i][1], words[i][2], words[i][3]};
  }
  // From device memory one copy reaches all: eight times the bytes would take the stores' way far longer.
  asm volatile("fence.proxy.async.global;" ::: "memory");
  sync_threads(kWeightsWritten, 128);
  if (threadIdx.x == 0) {
    constexpr uint32_t kBytes = kOwnPieces * kPieceBytes;
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
        "%4;" ::"r"(shared_address(s.keys_then_weights) + rank * kBytes),
        "l"(scratch + rank * kBytes), "r"(kBytes), "r"(shared_address(&s.weights_there)),
        "h"(static_cast<uint16_t>((1 << kCluster) - 1))
        : "memory");
  }
  send_all(s.sums[rank], s.sums_there, sums, heads, c, [](float a, float b) { return a + b; });
}

// Decays of all blocks; later, the factor of the result. One thread a head.
template <RowKind kWindow>
__device__ void note_decays(ClusterShared& s, int head, float& largest) {
  float most[kMaxBlocks];
#pragma unroll
  for (int block = 0; block < kMaxBlocks; ++block) most[block] = -INFINITY;
#pragma unroll
  for (int rank = 0; rank < kCluster; ++rank) {
    const float2 x = s.largest[rank][head];
    const int first = first_block_of(rank);
    most[first] = fmaxf(most[first], x.x), most[first + 1] = fmaxf(most[first + 1], x.y);
  }
  largest = kNoScore;
#pragma unroll
  for (int block = 0; block < kMaxBlocks; ++block) {
    const float before = largest;
    largest = fmaxf(largest, most[block]);
    s.decay[block][head] = exp2_fast((before - largest) * score_scale(kWindow));
  }
}
template <RowKind kWindow>
__device__ void note_factor(ClusterShared& s, int num_blocks, int head, float largest, float sink) {
  const auto piece_sum = [&](int piece) { return s.sums[piece / kOwnPieces][head][piece % kOwnPieces]; };
  float total = 0;
#pragma unroll
  for (int block = 0; block < kMaxBlocks; ++block) {
    if (block >= num_blocks) break;
    const float sum =
        (piece_sum(4 * block) + piece_sum(4 * block + 1)) + (piece_sum(4 * block + 2) + piece_sum(4 * block + 3));
    total = add_block(total, s.decay[block][head], sum);
  }
  s.factor[head] = head_factor<kWindow>(total, largest, sink);
}

}  // namespace deepinfer::cuda
