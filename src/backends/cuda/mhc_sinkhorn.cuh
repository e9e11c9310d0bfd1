// Sinkhorn's iteration of ops/mhc.h in one thread's registers, from the softmax of the logits on.
//
// Every step waits for the one before, so its length is what counts. The matrix stays as it is: what its rows and
// columns have been divided by is kept beside it. With m = k / (row * column), a step "divide row i by its sum + eps"
// is
//   row[i] <- sum_j k[i][j] / column[j] + eps * row[i],
// and likewise for columns. 1 / column[j] is the product of the other columns over the product of all; a reciprocal
// would take as long as the rest of the step, so only a power of two near the latter is divided by, by its exponent,
// and rows and columns are known up to a factor (the gauge). Only eps * row[i] needs to know it: as the ratio of the
// new gauge to the old one, which a reciprocal that was begun two steps earlier gives.
#pragma once

#include <cstdint>

namespace deepinfer::cuda {

// To within a unit or two in the last place.
__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Of one side: `rest` times its true values are gauge_before * gauge of the other side; `ratio` is its gauge over its
// gauge before.
struct SinkhornGauge {
  float rest = 1, inverse_rest = 1, ratio = 1, inverse_ratio = 1;
};

// What the step for `x` makes of it and its gauge, from the other side `y`. Values stay within 1e-9 and 1e6, whatever
// the logits were: elements of m are at least eps and the largest of a row at least a quarter.
__device__ inline void sinkhorn_step(float (&x)[4], SinkhornGauge& of_x, const float (&m)[4][4], const float (&y)[4],
                                     const SinkhornGauge& of_y, float eps) {
  const float low = y[0] * y[1], high = y[2] * y[3], all = low * high;
  const float others[4] = {y[1] * high, y[0] * high, y[3] * low, y[2] * low};
  const float scale = __uint_as_float((0x7F000000u - __float_as_uint(all)) & 0x7F800000u);
  const float rest = scale * all, inverse_rest = reciprocal(rest);
  of_x = {rest, inverse_rest, rest * (of_x.inverse_rest * of_y.inverse_ratio), inverse_rest * (of_x.rest * of_y.ratio)};
  const float kept = eps * of_x.ratio;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float sum = m[i][0] * others[0];
#pragma unroll
    for (int j = 1; j < 4; ++j) sum = fmaf(m[i][j], others[j], sum);
    x[i] = fmaf(sum, scale, __fmul_rn(kept, x[i]));
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
  SinkhornGauge of_row, of_column;
  if (iterations > 0) sinkhorn_step(column, of_column, transposed, row, of_row, eps);
  for (int k = 1; k < iterations; ++k) {
    sinkhorn_step(row, of_row, m, column, of_column, eps);
    sinkhorn_step(column, of_column, transposed, row, of_row, eps);
  }
  // Both gauges multiplied are the last step's rest.
#pragma unroll
  for (int i = 0; i < 4; ++i) row[i] = of_column.rest * reciprocal(row[i]), column[i] = reciprocal(column[i]);
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
