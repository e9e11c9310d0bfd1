// The kernels of the linear op (contract: ops/linear.h), one set an instruction level. Each set owns a layout of packed
// weights: a weight may only be run by the set that packed it.
//
// `reference`, `avx2` and `avx512` give equal bits as long as inputs lie below 2^39 in magnitude, and sums over a group
// of 32 columns above 2^-88 or at zero: with FP8 and MXFP4 weights, sums may be kept times a power of two that costs
// bits beyond.
//
// `avx512_bf16` multiplies BF16 pairs for tasks with `input_is_bf16` (weights in FP8, MXFP4 or BF16): for each group of
// 32 columns, `g` takes the 16 pairs in ascending order, one VDPBF16PS each (two products, rounded after each;
// subnormals count as zero), then total = fma(g, scale, total). Its other tasks run as in `avx512`.
//
// `amx` differs for the same tasks. A weight is its code times its scale (FP8: 2^-117 to 2^119, MXFP4: 2^-125 to
// 2^125; scales beyond count as these). Of a group, `e` takes the even columns and `o` the odd ones, by fused
// multiply-adds from zero in ascending order, then total = total + (e + o). Subnormals count as zero everywhere.
//
// A row's bits depend on its own input, the weight and the set alone: not on the batch, the threads or other tasks.
#pragma once

#include <array>
#include <span>

#include "base/thread_pool.h"
#include "ops/linear.h"

namespace deepinfer::cpu {

struct LinearKernels {
  const char* name;
  bool (*supported)();  // by this processor; the functions below need it
  ops::PackedWeight (*pack)(ThreadPool&, const ops::WeightSource&);
  // All but `quantise_output`, which the op does afterwards. Allocates only while its buffers grow to the largest call
  // seen by the calling thread.
  void (*run)(ThreadPool&, std::span<const ops::LinearTask>);
};

const LinearKernels& reference_linear();
const LinearKernels& avx2_linear();         // AVX2, FMA, F16C
const LinearKernels& avx512_linear();       // AVX-512 F, BW, VL, DQ
const LinearKernels& avx512_bf16_linear();  // AVX-512 as above, VBMI and BF16
const LinearKernels& amx_linear();          // AVX-512 as above, VBMI, and AMX with BF16

// From the slowest to the fastest.
inline std::array<const LinearKernels*, 5> all_linear_kernels() {
  return {&reference_linear(), &avx2_linear(), &avx512_linear(), &avx512_bf16_linear(), &amx_linear()};
}

}  // namespace deepinfer::cpu
