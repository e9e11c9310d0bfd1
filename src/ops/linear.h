// Linear layers: y = x . W^T with W [rows, cols] in one of the checkpoint's formats and fp32 activations.
//
// Weights are packed once, at load, into the backend's own layout. Several products run in one call, so that small ones
// share a parallel region.
//
// The order of summation is a function of `cols` alone, never of the number of tokens: for output o and token t
//   total = 0; for each group of 32 columns: g = 0; for k ascending in the group: g = fma(value(W[o,k]), x[t,k], g);
//   total = fma(g, scale(o, group), total)
// where value() is the unscaled number and scale() its power-of-two scale (1 for BF16 and F32). Every fp32 kernel gives
// exactly these bits. Kernels that multiply BF16 pairs (`input_is_bf16` only) have an order of their own, equally
// fixed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "device/stream.h"
#include "device/view.h"

namespace deepinfer::ops {

enum class WeightFormat {
  kF8Tile32,  // E4M3 [rows, cols] with one E8M0 a 32x32 tile: scales [ceil(rows/32), cols/32]
  kMxfp4,     // E2M1 pairs [rows, cols/2], even column in the low nibble, with one E8M0 a row and 32 columns
  kBf16,      // [rows, cols]
  kF32,       // [rows, cols]
};

// A matrix as it lies in the checkpoint: row-major, no alignment promised. cols % 32 == 0.
struct WeightSource {
  WeightFormat format = WeightFormat::kBf16;
  int64_t rows = 0;
  int64_t cols = 0;
  const std::byte* data = nullptr;
  const std::byte* scales = nullptr;  // null for kBf16 and kF32
};

// A matrix in the backend's layout. Move-only; freed by the backend that packed it.
struct PackedWeight {
  WeightFormat format = WeightFormat::kBf16;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t bytes = 0;                // of `data`
  std::shared_ptr<std::byte> data;  // 64-byte aligned, in the backend's layout
};

struct LinearTask {
  TensorView out;      // [num_tokens, weight->rows]; kBf16 only with round_output_to_bf16
  ConstTensorView in;  // [num_tokens, weight->cols]
  const PackedWeight* weight = nullptr;
  bool input_is_bf16 = false;         // every value of `in` is exactly a BF16, whatever its type
  bool round_output_to_bf16 = false;  // round each output to the nearest BF16, ties to even
  bool quantise_output = false;       // then through FakeQuant::kE4m3Group32; weight->rows % 32 == 0
};

PackedWeight pack_weight(Stream& stream, const WeightSource& source);

// Runs all tasks; their outputs must not overlap each other or any input.
void linear(Stream& stream, std::span<const LinearTask> tasks);

}  // namespace deepinfer::ops
