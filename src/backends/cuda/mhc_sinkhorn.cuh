// Sinkhorn's iteration of ops/mhc.h in one thread's registers, from the softmax of the logits on.
//
// Every step waits for the one before, so its length is what counts. The matrix stays as it is: what its rows and
// columns have been divided by is kept beside it. With m = k / (row * column), a step "divide row i by its sum + eps"
// is
//   row[i] <- sum_j k[i][j] / column[j] + eps * row[i],
// and likewise for columns. 1 / column[j] is the product of the other columns over the product of all, whose reciprocal
// is on its way while the sums of the products of others are made.
#pragma once

#include <cstdint>

namespace deepinfer::cuda {

// To within a unit or two in the last place.
__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// What the step for `x` makes of it, from the other side `y`. Values stay within 1e-6 and 10, whatever the logits were:
// elements of m are at least eps and the largest of a row at least a quarter.
__device__ inline void sinkhorn_step(float (&x)[4], const float (&m)[4][4], const float (&y)[4], float eps) {
  const float low = y[0] * y[1], high = y[2] * y[3], inverse = reciprocal(low * high);
  const float others[4] = {y[1] * high, y[0] * high, y[3] * low, y[2] * low};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float sum = m[i][0] * others[0];
#pragma unroll
    for (int j = 1; j < 4; ++j) sum = fmaf(m[i][j], others[j], sum);
    x[i] = fmaf(sum, inverse, __fmul_rn(eps, x[i]));
  }
}

__device__ inline void sinkhorn(float (&m)[4][4], int iterations, float eps) {
  float transposed[4][4], row[4], column[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    row[i] = column[i] = 1;
#pragma unroll
    for (int j = 0; j < 4; ++j) transposed[j][i] = m[i][j];
  }
  if (iterations > 0) sinkhorn_step(column, transposed, row, eps);
  for (int k = 1; k < iterations; ++k) {
    sinkhorn_step(row, m, column, eps);
    sinkhorn_step(column, transposed, row, eps);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) row[i] = reciprocal(row[i]), column[i] = reciprocal(column[i]);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) m[i][j] = m[i][j] * row[i] * column[j];
  }
}

// Step by step as the contract has it.
template <int kH>
__device__ inline void sinkhorn(float (&m)[kH][kH], int iterations, float eps) {
  for (int k = 0; k < iterations; ++k) {
#pragma unroll
    for (int i = 0; i < kH; ++i) {
      float sum = eps;
#pragma unroll
      for (int j = 0; j < kH; ++j) sum += m[i][j];
#pragma unroll
      for (int j = 0; j < kH; ++j) m[i][j] = k > 0 ? m[i][j] / sum : m[i][j];
    }
#pragma unroll
    for (int j = 0; j < kH; ++j) {
      float sum = eps;
#pragma unroll
      for (int i = 0; i < kH; ++i) sum += m[i][j];
#pragma unroll
      for (int i = 0; i < kH; ++i) m[i][j] /= sum;
    }
  }
}

}  // namespace deepinfer::cuda
