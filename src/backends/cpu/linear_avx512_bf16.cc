// Linear kernels for AVX-512 with VBMI and BF16: one step is a pair of columns, multiplied by VDPBF16PS.
#include <immintrin.h>

#include "backends/cpu/linear_unit.h"

namespace deepinfer::cpu {
namespace {

#include "backends/cpu/linear_avx512.inc"

struct Bf16Math {
  using Weights = __m512i;
  static Weights load_weights(const std::byte* from) { return load_line(from); }
  static __m512i input(const std::byte* from) { return _mm512_set1_epi32(*reinterpret_cast<const int*>(from)); }
  static Vec multiply_add(Weights weights, __m512i input, Vec sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)weights, (__m512bh)input);
  }
};

#include "backends/cpu/linear_bf16_formats.inc"

}  // namespace

constinit const LinearUnitFunctions kAvx512Bf16Units = {
    {run_unit<Bf16Math, Fp8>, run_unit<Bf16Math, Mxfp4>, run_unit<Bf16Math, Bf16>, nullptr}, {1, 1, 1, 1}};

}  // namespace deepinfer::cpu
