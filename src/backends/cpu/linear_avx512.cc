// Linear kernels for AVX-512 F, BW, VL and DQ: 16 rows in one vector, one column a step, fp32 throughout.
#include <immintrin.h>

#include "backends/cpu/linear_unit.h"

namespace deepinfer::cpu {
namespace {

#include "backends/cpu/linear_avx512.inc"

struct Fp32Math {
  using Weights = __m512;
  static Weights load_weights(const std::byte* from) { return _mm512_load_ps(from); }
  static Vec input(const std::byte* from) { return _mm512_set1_ps(*reinterpret_cast<const float*>(from)); }
  static Vec multiply_add(Weights weights, Vec input, Vec sum) { return _mm512_fmadd_ps(weights, input, sum); }
};

struct F32 : Unscaled {
  static constexpr int kSteps = 1;
  static constexpr int kLines = 32;
  static constexpr int kVisits = 1;
  static constexpr bool kIsPanel = true;
  template <typename Emit>
  [[gnu::always_inline]] static void decode(Index<0>, const std::byte* line, Emit&& emit) {
    emit(Index<0>{}, Fp32Math::load_weights(line));
  }
};

struct Bf16 : Unscaled {
  static constexpr int kSteps = 2;
  static constexpr int kLines = 16;
  static constexpr int kVisits = 1;
  static constexpr bool kIsPanel = false;
  template <typename Emit>
  [[gnu::always_inline]] static void decode(Index<0>, const std::byte* line, Emit&& emit) {
    const __m512i pairs = load_line(line);
    const __m512i mask = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
    emit(Index<0>{}, _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)));
    emit(Index<1>{}, _mm512_castsi512_ps(_mm512_and_si512(pairs, mask)));
  }
};

// An E4M3 code shifted into an FP16 is its value times 2^-8, subnormals included; the factor is repaid on the sum.
struct Fp8 : Fp8Scale {
  static constexpr int kSteps = 4;
  static constexpr int kLines = 8;
  static constexpr int kVisits = 1;
  static constexpr bool kIsPanel = false;
  static Vec finish(Vec sum) { return _mm512_mul_ps(sum, _mm512_set1_ps(256.0f)); }

  // The ports that shuffle are those that multiply, so memory does what shuffles would: it brings codes to the high
  // bytes of words by an address one byte lower (what else it reads is masked, and precedes the line in its tile), and
  // takes the halves of a vector apart.
  template <typename Emit>
  [[gnu::always_inline]] static void decode(Index<0>, const std::byte* line, Emit&& emit) {
    struct alignas(kLineBytes) Halves {
      std::byte of[2 * kLineBytes];
    } halves;
    const __m512i mask = _mm512_set1_epi16(static_cast<short>(0xBF80));
    const __m512i even = _mm512_loadu_si512(line - 1);
    const __m512i odd = load_line(line);
    store_weights(halves.of, _mm512_and_si512(_mm512_srai_epi16(even, 1), mask));
    store_weights(halves.of + kLineBytes, _mm512_and_si512(_mm512_srai_epi16(odd, 1), mask));
    __asm__("" : "+m"(halves));  // or the compiler takes the vectors apart by shuffles
    unroll<4>([&](auto step) __attribute__((always_inline)) {
      const std::byte* from = halves.of + step % 2 * kLineBytes + step / 2 * (kLineBytes / 2);
      emit(step, _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(from))));
    });
  }
};

// The lookup takes the lowest four bits of a lane, where a row's eight columns lie: even ones in the low half, then the
// odd ones. Loads from the bytes that follow bring half of the columns there without a shift on a port that multiplies.
struct Mxfp4 : Mxfp4Scale {
  static constexpr int kSteps = 8;
  static constexpr int kLines = 4;
  static constexpr int kVisits = 1;
  static constexpr bool kIsPanel = false;
  template <typename Emit>
  [[gnu::always_inline]] static void decode(Index<0>, const std::byte* line, Emit&& emit) {
    const __m512 values = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f,
                                         -2.0f, -3.0f, -4.0f, -6.0f);
    const __m512i codes = load_line(line);
    unroll<8>([&](auto step) __attribute__((always_inline)) {
      constexpr int kBit = step % 2 * 16 + step / 2 * 4;
      const __m512i index = kBit % 8 == 0 ? _mm512_loadu_si512(line + kBit / 8) : _mm512_srli_epi32(codes, kBit);
      emit(step, _mm512_permutexvar_ps(index, values));
    });
  }
};

}  // namespace

constinit const LinearUnitFunctions kAvx512Units = {
    {run_unit<Fp32Math, Fp8>, run_unit<Fp32Math, Mxfp4>, run_unit<Fp32Math, Bf16>, run_unit<Fp32Math, F32>},
    {1, 1, 1, 1}};

}  // namespace deepinfer::cpu
