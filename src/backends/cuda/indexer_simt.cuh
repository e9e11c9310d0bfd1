// Index scores on CUDA cores: any number of heads, any width, every type of row. A warp takes a key, a lane every 32nd
// head: the dot product runs along the key in order, a lane adds its heads in order, and one tree adds the lanes.
// Floor: 2 * heads * width flops a token and row at the rate of FP32; not for the released shapes, whose own kernels
// are in indexer_few.cuh and indexer_many.cuh.
#pragma once

#include "backends/cuda/indexer_rows.cuh"
#include "backends/cuda/quantise.cuh"

namespace deepinfer::cuda {

inline constexpr int kSimtWarps = 8;
inline constexpr int kSimtKeys = 64;  // of a token, in a block of threads

// Value i of a stored row.
__device__ inline float row_value(ops::RowType type, const std::byte* row, int64_t width, int64_t i) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(row);
  const auto e2m1 = [&] { return e2m1_value(bytes[i / 2] >> (i & 1) * 4 & 15); };
  switch (type) {
    case ops::RowType::kF32:
      return reinterpret_cast<const float*>(row)[i];
    case ops::RowType::kBf16:
      return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(row)[i]);
    case ops::RowType::kE4m3Group32:
      return e4m3_value(bytes[i]) * e8m0_value(bytes[width + i / 32]);
    case ops::RowType::kE2m1Group16:
      return e2m1() * e4m3_value(bytes[width / 2 + i / 16]);
    case ops::RowType::kE2m1Group32:
      return e2m1() * e8m0_value(bytes[width / 2 + i / 32]);
  }
  return 0;
}

// Floats of dynamic shared memory: the query with rows padded against bank conflicts, its weights, a key a warp.
inline __host__ __device__ int64_t simt_floats(int64_t num_heads, int64_t head_dim) {
  return num_heads * (head_dim + 2) + kSimtWarps * head_dim;
}

__global__ void __launch_bounds__(kSimtWarps * 32) index_scores_simt_kernel(IndexScoreParams p) {
  extern __shared__ float shared[];
  const int64_t token = p.scores.first + blockIdx.y;
  const int64_t begin = int64_t{blockIdx.x} * kSimtKeys;
  const int64_t count = p.count(token);
  if (begin >= count) return;
  const int padded = p.head_dim + 1;
  float* q = shared;
  float* weights = q + p.num_heads * padded;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* key = weights + p.num_heads + warp * p.head_dim;
  for (int i = threadIdx.x; i < p.num_heads * p.head_dim; i += blockDim.x) {
    q[i / p.head_dim * padded + i % p.head_dim] = load_element(p.q, token, i);
  }
  for (int h = threadIdx.x; h < p.num_heads; h += blockDim.x) weights[h] = load_element(p.head_weights, token, h);
  __syncthreads();

  std::byte* const* blocks = p.choice.blocks[token];
  const int64_t end = count < begin + kSimtKeys ? count : begin + kSimtKeys;
  for (int64_t i = begin + warp; i < end; i += kSimtWarps) {
    const int64_t r = p.choice.row(token, i);
    const std::byte* row =
        blocks[r >> p.keys.block_shift] + p.keys.offset + (r & ((int64_t{1} << p.keys.block_shift) - 1)) * p.row_bytes;
    for (int d = lane; d < p.head_dim; d += 32) key[d] = row_value(p.keys.type, row, p.head_dim, d);
    __syncwarp();
    float score = 0;
    for (int h = lane; h < p.num_heads; h += 32) {
      float dot = 0;
      for (int d = 0; d < p.head_dim; ++d) dot = fmaf(q[h * padded + d], key[d], dot);
      score = fmaf(fmaxf(dot, 0.0f), weights[h], score);
    }
    for (int distance = 16; distance > 0; distance /= 2) score += __shfl_xor_sync(~0u, score, distance);
    if (lane == 0) p.scores.of(token)[i] = ordered_score(score);
    __syncwarp();
  }
}

}  // namespace deepinfer::cuda
