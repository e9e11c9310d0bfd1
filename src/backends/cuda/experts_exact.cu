// The experts in fp32, one fused multiply-add after the other. For models that do not round between operations, and
// for matrices that the tensor cores cannot multiply.
//
// Floor: 2 flops a weight and row / fp32 rate; a block is 64 outputs x 16 rows, and its sums are one chain of additions
// each, so that few rows are bound by the latency of as many additions as a matrix has columns.
#include "backends/cuda/cuda_check.h"
#include "backends/cuda/experts_exact.cuh"
#include "backends/cuda/gemm_epilogue.cuh"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/weight_tiles.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kOutputs = 64, kGroup = 32, kThreads = 256;

struct ExactExperts {
  const ExactMatrices* matrices;
  int num_experts;
  ExpertsPlan plan;
  const std::byte* in;  // w1 and w3: tokens; w2: rows
  int64_t in_stride;
  bool in_is_bf16;
  float* out;
  int rows, cols;  // of a matrix
  int num_slots;   // routed rows
  bool gate_up;
  float limit;
  bool round, quantise;
};

__device__ float exact_weight(const ExactMatrix& m, int rows, int cols, int row, int col, float* scale) {
  *scale = 1;
  if (row >= rows) return 0;
  if (m.format == WeightFormat::kF32)
    return reinterpret_cast<const float*>(m.data)[static_cast<int64_t>(row) * cols + col];
  const int column_tiles = (cols + kTileCols - 1) / kTileCols;
  const std::byte* tile =
      m.data + (static_cast<int64_t>(row / kTileRows) * column_tiles + col / kTileCols) * tile_bytes(m.format);
  uint32_t byte;
  const float value = tile_element(m.format, tile, row % kTileRows, col % kTileCols, &byte);
  *scale = byte == 255 ? __uint_as_float(0x7FC00000u) : __uint_as_float(byte == 0 ? 0x00400000u : byte << 23);
  return value;
}

// A block: the rows of a WorkTile times 64 outputs. A thread sums four rows of one output.
struct ExactShared {
  float weights[kGroup][kOutputs + 1], scales[kOutputs], in[kGroup][kExactTileRows];
  float sums[2][kExactTileRows][kOutputs + 4];
};

__device__ void exact_sums(const ExactExperts& p, const ExactMatrix& matrix, const WorkTile& tile, int first_output,
                           ExactShared& shared, float (&sums)[kExactTileRows][kOutputs + 4]) {
  const int output = threadIdx.x % kOutputs, quad = threadIdx.x / kOutputs * 4;
  float total[4] = {0, 0, 0, 0};
  for (int k = 0; k < p.cols; k += kGroup) {
    __syncthreads();
    for (int i = threadIdx.x; i < kGroup * kOutputs; i += kThreads) {
      const int col = i % kGroup, row = i / kGroup;
      float scale;
      shared.weights[col][row] = exact_weight(matrix, p.rows, p.cols, first_output + row, k + col, &scale);
      if (col == 0) shared.scales[row] = scale;
    }
    for (int i = threadIdx.x; i < kGroup * kExactTileRows; i += kThreads) {
      const int local = i / kGroup;
      float x = 0;
      if (local < tile.num_rows) {
        int64_t row = tile.first_row + local;
        if (p.gate_up) row = tile.shared ? row - p.num_slots : p.plan.row_token[row];
        const int64_t at = row * p.in_stride + k + i % kGroup;
        x = p.in_is_bf16 ? __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(p.in)[at])
                         : reinterpret_cast<const float*>(p.in)[at];
      }
      shared.in[i % kGroup][local] = x;
    }
    __syncthreads();
    float group[4] = {0, 0, 0, 0};
#pragma unroll 8
    for (int col = 0; col < kGroup; ++col) {
#pragma unroll
      for (int i = 0; i < 4; ++i) group[i] = fmaf(shared.weights[col][output], shared.in[col][quad + i], group[i]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) total[i] = fmaf(group[i], shared.scales[output], total[i]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[quad + i][output] = p.round ? round_bf16(total[i]) : total[i];
}

__global__ void __launch_bounds__(kThreads) exact_experts_kernel(const ExactExperts p) {
  __shared__ ExactShared shared;
  if (static_cast<int>(blockIdx.y) >= *p.plan.num_tiles) return;
  const WorkTile tile = p.plan.tiles[blockIdx.y];
  const ExactMatrices& m = p.matrices[tile.expert_index];
  const int first_output = blockIdx.x * kOutputs;
  exact_sums(p, p.gate_up ? m.w1 : m.w2, tile, first_output, shared, shared.sums[0]);
  if (p.gate_up) exact_sums(p, m.w3, tile, first_output, shared, shared.sums[1]);
  __syncthreads();
  const int local = threadIdx.x / 16, column = threadIdx.x % 16 * 4, row = tile.first_row + local;
  float x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = shared.sums[0][local][column + i];
  if (p.gate_up) {
    const float weight = !tile.shared && local < tile.num_rows ? p.plan.row_weight[row] : 1.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float gate = x[i] < p.limit ? x[i] : p.limit;
      const float up = fminf(fmaxf(shared.sums[1][local][column + i], -p.limit), p.limit);
      x[i] = round_bf16_if(gate * (1.0f / (1.0f + expf(-gate))) * up * weight, p.round);
    }
    if (p.quantise) fake_quant_e4m3(x);
  }
  if (local >= tile.num_rows || first_output + column >= p.rows) return;
  *reinterpret_cast<float4*>(p.out + static_cast<int64_t>(row) * p.rows + first_output + column) =
      make_float4(x[0], x[1], x[2], x[3]);
}

}  // namespace

void exact_experts(CudaStream& stream, const PlanShape& shape, const ExactMatrices* matrices,
                   const ops::ExpertsArgs& args, const ExpertsPlan& plan, float* activated, float* out_rows) {
  const int hidden = static_cast<int>(args.out.cols), inner = static_cast<int>(args.bank->shared.w1.rows);
  ExactExperts p;
  p.matrices = matrices;
  p.num_experts = shape.num_experts;
  p.plan = plan;
  p.num_slots = shape.num_rows();
  p.round = args.round_to_bf16;
  p.in = args.in.data, p.in_stride = args.in.stride, p.in_is_bf16 = args.in.type == ElementType::kBf16;
  p.out = activated;
  p.rows = inner, p.cols = hidden;
  p.gate_up = true, p.limit = args.swiglu_limit, p.quantise = args.quantise;
  const unsigned tiles = static_cast<unsigned>(shape.most_tiles());
  exact_experts_kernel<<<dim3((inner + kOutputs - 1) / kOutputs, tiles), kThreads, 0, stream.handle()>>>(p);
  DI_CUDA_CHECK_LAUNCH();
  p.in = reinterpret_cast<const std::byte*>(activated), p.in_stride = inner, p.in_is_bf16 = false;
  p.out = out_rows;
  p.rows = hidden, p.cols = inner;
  p.gate_up = false, p.quantise = false;
  exact_experts_kernel<<<dim3((hidden + kOutputs - 1) / kOutputs, tiles), kThreads, 0, stream.handle()>>>(p);
  DI_CUDA_CHECK_LAUNCH();
}

}  // namespace deepinfer::cuda
