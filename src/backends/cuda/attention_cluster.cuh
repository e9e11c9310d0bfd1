// What the blocks of a cluster that share a token's keys (attention_cluster.cu) keep, and the shape of the sharing.
#pragma once

#include "backends/cuda/attention_mma.cuh"
#include "backends/cuda/attention_steps.cuh"
#include "backends/cuda/cluster.cuh"
#include "backends/cuda/pipeline.cuh"

namespace deepinfer::cuda {

inline constexpr int kCluster = 8;
inline constexpr int kClusterThreads = 512;
inline constexpr int kClusterWarps = kClusterThreads / 32;
inline constexpr int kPieceKeys = 16;  // keys go to blocks of the cluster by fives of these
inline constexpr int kPieces = kMaxKeys / kPieceKeys;
inline constexpr int kOwnPieces = kPieces / kCluster;
inline constexpr int kOwnKeys = kMaxKeys / kCluster;
inline constexpr int kOwnTileBytes = kOwnKeys * 128;
inline constexpr int kMaxBlocks = kMaxKeys / kKeysPerBlock;
inline constexpr int kPieceBytes = kHeads * kPieceKeys * 2;  // of weights
inline constexpr int kValueWarps = kClusterWarps - 4;        // that convert values; the first four have scores to do
inline constexpr int kQueryRead = 1, kWeightsWritten = 2, kValuesThere = 3, kFactorThere = 4;  // named barriers
inline constexpr int kStages = 4, kColumnsThere = 5;  // of the own keys, 128 columns a stage; kStages barriers

inline constexpr uint32_t kLargestBytes = kCluster * kHeads * 8, kSumsBytes = kPieces * kHeads * 4;  // that are sent

struct ClusterShared {
  std::byte q_then_values[kMaxKeys * 128];      // 8 tiles of 64 heads; one tile of all keys
  std::byte keys_then_weights[kMaxKeys * 128];  // 8 tiles of the own keys; a piece after the other, 64 heads each
  float2 largest[kCluster][kHeads];             // scores of the keys in its first and in its second block of 64
  float sums[kCluster][kHeads][8];              // weights of its five pieces
  float decay[kMaxBlocks][kHeads];
  float factor[kHeads];
  uint64_t largest_there, sums_there, weights_there;  // those of all blocks
  const std::byte* rows[kMaxKeys];
};

// The keys of a block of the cluster belong to two blocks of 64 keys, from this one on.
__device__ __forceinline__ constexpr int first_block_of(int rank) {
  return rank * kOwnPieces * kPieceKeys / kKeysPerBlock;
}
static_assert(kOwnPieces == 5);

// Where a piece's 8 keys of a head's weights lie. Rows of 32 bytes: units alternate so that eight rows meet all banks.
__device__ __forceinline__ uint32_t weights_address(uint32_t weights, int piece, int head, int half) {
  return weights + piece * kPieceBytes + head * 32 + ((half ^ (head >> 2 & 1)) << 4);
}

// Numbers of a head to a block, reported to its barrier.
__device__ __forceinline__ void send_numbers(uint32_t to, uint32_t barrier, int rank, const float (&x)[2]) {
  send(address_in(to, rank), make_float2(x[0], x[1]), address_in(barrier, rank));
}
__device__ __forceinline__ void send_numbers(uint32_t to, uint32_t barrier, int rank, const float (&x)[kOwnPieces]) {
  const uint32_t there = address_in(to, rank), report = address_in(barrier, rank);
  send(there, make_float4(x[0], x[1], x[2], x[3]), report);
  send(there + 16, x[4], report);
}
// Of all threads: after it, every block of the cluster has started and made its barriers.
__device__ __forceinline__ void arrive_started() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_started() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

}  // namespace deepinfer::cuda
