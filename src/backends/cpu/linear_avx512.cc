// Linear kernels for AVX-512 F, BW, VL and DQ: 16 rows in one vector, one column a step, fp32 throughout.
#include <immintrin.h>

#include "backends/cpu/linear_unit.h"

namespace deepinfer::cpu {
namespace {

#include "backends/cpu/linear_avx512.inc"

struct Fp32Math {
  using Weights = __m512;
  static Weights load_weights(const std::byte* from) { return _mm512_load_ps(from); }
  static Vec multiply_add(Weights weights, const std::byte* input, Vec sum) {
    return _mm512_fmadd_ps(weights, _mm512_set1_ps(*reinterpret_cast<const float*>(input)), sum);
  }
};

struct F32 : Unscaled {
  static constexpr int kSteps = 1;
  static constexpr int kLines = 32;
  static constexpr bool kIsPanel = true;
  template <typename Emit>
  [[gnu::always_inline]] static void decode(const std::byte* line, Emit&& emit) {
    emit(Index<0>{}, Fp32Math::load_weights(line));
  }
};

// Of BF16 pairs, one row a lane: step `even` is the low halves, step `odd` the high ones.
template <typename Even, typename Odd, typename Emit>
[[gnu::always_inline]] inline void emit_pairs(__m512i pairs, Even even, Odd odd, Emit&& emit) {
  emit(even, _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)));
  emit(odd, _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u)))));
}

struct Bf16 : Unscaled {
  static constexpr int kSteps = 2;
  static constexpr int kLines = 16;
  static constexpr bool kIsPanel = false;
  template <typename Emit>
  [[gnu::always_inline]] static void decode(const std::byte* line, Emit&& emit) {
    emit_pairs(load_line(line), Index<0>{}, Index<1>{}, emit);
  }
};

// An E4M3 code shifted into an FP16 is its value times 2^-8, subnormals included; the factor is repaid on the sum.
struct Fp8 : Fp8Scale {
  static constexpr int kSteps = 4;
  static constexpr int kLines = 8;
  static constexpr bool kIsPanel = false;
  static Vec finish(Vec sum) { return _mm512_mul_ps(sum, _mm512_set1_ps(256.0f)); }

  template <typename Emit>
  [[gnu::always_inline]] static void decode(const std::byte* line, Emit&& emit) {
    // The lower half takes the 16 rows' first pairs of columns, the upper half their second ones.
    const __m512i codes = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), load_line(line));
    const __m512i mask = _mm512_set1_epi16(static_cast<short>(0xBF80));
    const __m512i even = _mm512_and_si512(_mm512_srai_epi16(_mm512_slli_epi16(codes, 8), 1), mask);
    const __m512i odd = _mm512_and_si512(_mm512_srai_epi16(codes, 1), mask);
    emit(Index<0>{}, _mm512_cvtph_ps(_mm512_castsi512_si256(even)));
    emit(Index<1>{}, _mm512_cvtph_ps(_mm512_castsi512_si256(odd)));
    emit(Index<2>{}, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(even, 1)));
    emit(Index<3>{}, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(odd, 1)));
  }
};

struct Mxfp4 : Mxfp4Scale {
  static constexpr int kSteps = 8;
  static constexpr int kLines = 4;
  static constexpr bool kIsPanel = false;
  template <typename Emit>
  [[gnu::always_inline]] static void decode(const std::byte* line, Emit&& emit) {
    const __m512i codes = load_line(line);
    unroll<4>([&](auto nibble) __attribute__((always_inline)) {
      emit_pairs(mxfp4_pairs<nibble>(codes), Index<nibble * 2>{}, Index<nibble * 2 + 1>{}, emit);
    });
  }
};

}  // namespace

constinit const LinearUnitFunctions kAvx512Units = {
    {run_unit<Fp32Math, Fp8>, run_unit<Fp32Math, Mxfp4>, run_unit<Fp32Math, Bf16>, run_unit<Fp32Math, F32>},
    {1, 1, 1, 1}};

}  // namespace deepinfer::cpu
