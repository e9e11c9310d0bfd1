// Products in fp32, one fused multiply-add after the other: the CPU kernels' bits. For models that do not round between
// operations, fp32 weights, and matrices whose scales BF16 cannot express.
//
// Floor: 2 rows cols tokens / fp32 rate; a block is 64 outputs x 16 tokens, and its sums are one chain of additions
// each, so that few tokens are bound by the latency of `cols` additions.
#include <algorithm>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/gemm_epilogue.cuh"
#include "backends/cuda/linear_exact.cuh"
#include "backends/cuda/weight_tiles.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kOutputs = 64, kTokens = 16, kGroup = 32, kThreads = 256;

struct ExactParams {
  const std::byte* weights;
  WeightFormat format;
  int64_t rows, cols, column_tiles;
  const std::byte* in;
  int64_t in_stride;
  bool in_is_bf16;
  OutputFormat out;
};

__device__ float load_weight(const ExactParams& p, int64_t row, int64_t col, float* scale) {
  *scale = 1;
  if (row >= p.rows) return 0;
  if (p.format == WeightFormat::kF32) return reinterpret_cast<const float*>(p.weights)[row * p.cols + col];
  const std::byte* tile = p.weights + (row / kTileRows * p.column_tiles + col / kTileCols) * tile_bytes(p.format);
  uint32_t byte;
  const float value = tile_element(p.format, tile, row % kTileRows, col % kTileCols, &byte);
  *scale = byte == 255 ? __uint_as_float(0x7FC00000u) : __uint_as_float(byte == 0 ? 0x00400000u : byte << 23);
  return value;
}

// A thread sums four tokens of one output; those of a group of 32 outputs sit side by side, as the quantiser needs.
__global__ void __launch_bounds__(kThreads) exact_kernel(const ExactParams p) {
  __shared__ float weights[kGroup][kOutputs + 1], scales[kOutputs], tokens[kGroup][kTokens];
  __shared__ float sums[kTokens][kOutputs + 4];
  const int64_t first_output = static_cast<int64_t>(blockIdx.x) * kOutputs;
  const int64_t first_token = static_cast<int64_t>(blockIdx.y) * kTokens;
  const int output = threadIdx.x % kOutputs, quad = threadIdx.x / kOutputs * 4;
  float total[4] = {0, 0, 0, 0};
  for (int64_t k = 0; k < p.cols; k += kGroup) {
    __syncthreads();
    for (int i = threadIdx.x; i < kGroup * kOutputs; i += kThreads) {
      const int col = i % kGroup, row = i / kGroup;
      float scale;
      weights[col][row] = load_weight(p, first_output + row, k + col, &scale);
      if (col == 0) scales[row] = scale;
    }
    for (int i = threadIdx.x; i < kGroup * kTokens; i += kThreads) {
      const int64_t col = k + i % kGroup, token = first_token + i / kGroup;
      float x = 0;
      if (token < p.out.num_tokens) {
        const int64_t at = token * p.in_stride + col;
        x = p.in_is_bf16 ? __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(p.in)[at])
                         : reinterpret_cast<const float*>(p.in)[at];
      }
      tokens[i % kGroup][i / kGroup] = x;
    }
    __syncthreads();
    float group[4] = {0, 0, 0, 0};
#pragma unroll 8
    for (int col = 0; col < kGroup; ++col) {
#pragma unroll
      for (int i = 0; i < 4; ++i) group[i] = fmaf(weights[col][output], tokens[col][quad + i], group[i]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) total[i] = fmaf(group[i], scales[output], total[i]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[quad + i][output] = total[i];
  __syncthreads();
  const int local = threadIdx.x / 16, column = threadIdx.x % 16 * 4;
  float x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = p.out.round ? round_bf16(sums[local][column + i]) : sums[local][column + i];
  if (p.out.quantise) fake_quant_e4m3(x);
  const int64_t token = first_token + local;
  if (token < p.out.num_tokens && first_output + column < p.out.num_outputs) {
    store_outputs(p.out, static_cast<int>(token), static_cast<int>(first_output) + column, x);
  }
}

}  // namespace

void run_exact(CudaStream& stream, const ops::LinearTask& task) {
  const ops::PackedWeight& weight = *task.weight;
  ExactParams p;
  p.weights = weight.data.get();
  p.format = weight.format;
  p.rows = weight.rows, p.cols = weight.cols, p.column_tiles = column_tiles(weight);
  p.in = task.in.data;
  p.in_stride = task.in.stride;
  p.in_is_bf16 = task.in.type == ElementType::kBf16;
  p.out = output_format(task, 1.0f);
  const dim3 grid(static_cast<unsigned>((weight.rows + kOutputs - 1) / kOutputs),
                  static_cast<unsigned>((task.in.rows + kTokens - 1) / kTokens));
  exact_kernel<<<grid, kThreads, 0, stream.handle()>>>(p);
  DI_CUDA_CHECK_LAUNCH();
}

}  // namespace deepinfer::cuda
