// Random weights in the checkpoint's form, and sets of packed ones that are too large for any cache.
#pragma once

#include <cstdint>
#include <vector>

#include "backends/cpu/linear.h"
#include "base/thread_pool.h"

namespace deepinfer::bench {

// A random matrix: every code but NaN, and `num_scales` neighbouring E8M0 codes from `first_scale` (2^-8 to 2^7 unless
// told otherwise); BF16 and F32 from 2^-8 to 2^-1.
class RandomMatrix {
 public:
  RandomMatrix(ThreadPool& pool, ops::WeightFormat format, int64_t rows, int64_t cols, uint64_t seed,
               int first_scale = 119, int num_scales = 16);

  ops::WeightSource source() const;
  // 32 rows from `first_row`, a multiple of 32.
  ops::WeightSource slice(int64_t first_row) const;

 private:
  ops::WeightFormat format_;
  int64_t rows_;
  int64_t cols_;
  std::vector<std::byte> data_;
  std::vector<std::byte> scales_;
};

// The magnitudes of a slice, row-major, scales applied.
std::vector<float> magnitudes(const ops::WeightSource& slice);

std::vector<float> random_bf16_values(int64_t count, uint64_t seed);

}  // namespace deepinfer::bench
