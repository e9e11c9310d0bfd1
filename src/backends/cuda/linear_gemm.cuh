// The tensor-core half of `linear`: what a launch is told, and its host entry point.
#pragma once

#include <cuda.h>

#include <array>
#include <span>

#include "backends/cuda/cuda_stream.h"
#include "backends/cuda/gemm_epilogue.cuh"
#include "backends/cuda/weight_tiles.cuh"
#include "ops/linear.h"

namespace deepinfer::cuda {

inline constexpr int kMaxGemmTasks = 16;
inline constexpr int kMaxParts = 8;  // as many blocks as a cluster has on every card

// One matrix times its tokens. Its items are the pairs of a block of outputs and a block of N tokens, each times
// the parts of the sum if those are spread over blocks.
struct GemmTask {
  const std::byte* tiles;
  int num_k_tiles;
  int row_tiles;      // of 64
  int cluster_rows;   // blocks of outputs, those of a cluster together
  int token_blocks;   // of N
  int bytes_of_slab;  // of the tokens that are fetched of a column tile
  int num_parts;
  int exponent;           // TileShare's
  bool stores_boxes;      // plain BF16 outputs at multiples of 16 bytes
  int first_counter;      // of its blocks
  int64_t first_partial;  // of its items
  OutputFormat out;
};

// In the order in which a block asks for it: what comes first is fetched first, and weights wait for it.
struct GemmParams {
  int num_tasks;
  int num_items;
  int num_stages;
  int ring_bytes;      // of a stage
  int inbox_bytes;     // of a block whose cluster are the parts of its sums; otherwise 0
  float4* partials;    // of many tokens: [item][N / 8][consumers], or a block's totals
  uint4* left;         // of few: [item][N / 8][consumers], zeros between launches
  unsigned* counters;  // zero between launches
  int first_items[kMaxGemmTasks];
  GemmTask tasks[kMaxGemmTasks];
  CUtensorMap tokens[kMaxGemmTasks];
  CUtensorMap outputs[kMaxGemmTasks];  // of those that boxes can be stored to
};

// What a block works at.
struct Item {
  int task;
  int block_row;
  int token_block;
  int part;   // of an item that is one part
  int block;  // number within the task, parts aside
};

// A kernel, and what the host must know of it.
struct GemmVariant {
  int block_tokens;
  bool spread;  // parts over blocks
  int groups;   // of 64 outputs
  int cluster;  // blocks that share tokens
  void (*kernel)(GemmParams);
  int stage_bytes;
  int threads;
  int shared_limit;
  int fixed_shared_bytes;  // besides the stages
};
// Narrow: blocks of 64 outputs, of few tokens two a multiprocessor, where that leaves none without work.
enum GemmShape { k8Narrow, k8, k16Narrow, k16, k64Narrow, k64, k128, k128Whole, k256, k256Whole, kNumGemmShapes };
using GemmVariants = std::array<GemmVariant, kNumGemmShapes>;
const GemmVariants& gemm_variants_f8();
const GemmVariants& gemm_variants_fp4();
const GemmVariants& gemm_variants_bf16();
inline constexpr int kMaxGemmStages = 24;
inline constexpr int kManyTokens = 128;  // of a block
inline constexpr int kBoxedTokens = 64;  // of a block that stores outputs in boxes, and more
template <int N>
inline constexpr bool kStoresBoxes = N >= kBoxedTokens;
// Tokens of a box: of few, all; of many, all that have the same block's sums, or what blocks that exchange sums share
// out.
__host__ __device__ constexpr int box_tokens(int block_tokens, bool spread) {
  return block_tokens < kManyTokens ? block_tokens : spread ? 32 : 128;
}
__host__ __device__ constexpr int box_floats(int tokens) { return tokens * 32; }  // BF16, 64 outputs
// Floats of a warpgroup's staging: what write_outputs needs, or a box; for many tokens one of 128, and more where four
// stages leave room for some of a total.
template <WeightFormat kFormat, int N>
inline constexpr int kWarpgroupStaging = !kStoresBoxes<N>                                     ? kStagingFloats<N>
                                         : N < kManyTokens                                    ? box_floats(N)
                                         : N == kManyTokens || kFormat == WeightFormat::kBf16 ? box_floats(128)
                                                                                              : box_floats(224);

// The number of parts that the sums of a matrix are made of: its own constant, whatever runs beside it.
int gemm_parts(const ops::PackedWeight& weight);

// Whether the tensor cores can run a task.
bool gemm_supports(const ops::LinearTask& task);
// At most kMaxGemmTasks, all supported.
void run_gemm(CudaStream& stream, std::span<const ops::LinearTask> tasks);

}  // namespace deepinfer::cuda
