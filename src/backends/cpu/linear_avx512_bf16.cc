// Linear kernels for AVX-512 with VBMI and BF16: one step is a pair of columns, multiplied by VDPBF16PS. Weights decode
// to BF16 exactly; none is a BF16 subnormal, which the instruction would take for zero, unless the checkpoint itself is
// BF16.
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

struct Bf16 : Unscaled {
  static constexpr int kSteps = 1;
  static constexpr int kLines = 16;
  static constexpr int kVisits = 1;
  static constexpr bool kIsPanel = true;
  template <typename Emit>
  [[gnu::always_inline]] static void decode(Index<0>, const std::byte* line, Emit&& emit) {
    emit(Index<0>{}, load_line(line));
  }
};

// The bytes of the BF16 of every E4M3 magnitude.
struct Fp8Tables {
  alignas(kLineBytes) unsigned char low[128];
  alignas(kLineBytes) unsigned char high[128];
};

constexpr Fp8Tables make_fp8_tables() {
  Fp8Tables tables = {};
  for (int code = 0; code < 128; ++code) {
    int exponent = code >> 3;
    int mantissa = code & 7;
    int bits = 0;
    if (code == 127) {
      bits = 0x7FC0;  // NaN
    } else if (exponent > 0) {
      bits = (exponent + 120) << 7 | mantissa << 4;
    } else if (mantissa > 0) {
      for (exponent = 1; mantissa < 8; mantissa *= 2) --exponent;
      bits = (exponent + 120) << 7 | (mantissa & 7) << 4;
    }
    tables.low[code] = static_cast<unsigned char>(bits & 255);
    tables.high[code] = static_cast<unsigned char>(bits >> 8);
  }
  return tables;
}

constexpr Fp8Tables kFp8Tables = make_fp8_tables();

struct Fp8 : Fp8Scale {
  static constexpr int kSteps = 2;
  static constexpr int kLines = 8;
  static constexpr int kVisits = 1;
  static constexpr bool kIsPanel = false;
  static Vec finish(Vec sum) { return sum; }

  template <typename Emit>
  [[gnu::always_inline]] static void decode(Index<0>, const std::byte* line, Emit&& emit) {
    // Four rows' first pairs of columns, then their second ones: what the unpacking below takes for one row a lane.
    const __m512i codes = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), load_line(line));
    const __m512i low =
        _mm512_permutex2var_epi8(_mm512_load_si512(kFp8Tables.low), codes, _mm512_load_si512(kFp8Tables.low + 64));
    const __m512i magnitude =
        _mm512_permutex2var_epi8(_mm512_load_si512(kFp8Tables.high), codes, _mm512_load_si512(kFp8Tables.high + 64));
    // magnitude | (codes & 0x80)
    const __m512i high = _mm512_ternarylogic_epi32(magnitude, codes, _mm512_set1_epi8(-128), 0xF8);
    emit(Index<0>{}, _mm512_unpacklo_epi8(low, high));
    emit(Index<1>{}, _mm512_unpackhi_epi8(low, high));
  }
};

// Nibble kNibble of each 16-bit half of a line of MXFP4 as BF16: columns 2 * kNibble and 2 * kNibble + 1 of each row.
// The lookup takes five bits of a word; the table repeats itself, so that the fifth, the next nibble's, has no effect.
template <int kNibble>
[[gnu::always_inline]] inline __m512i mxfp4_pairs(__m512i line) {
  // Two BF16 values an entry: 0 and 0.5, 1 and 1.5, 2 and 3, 4 and 6, then the same with a sign.
  const __m512i table = _mm512_broadcast_i32x8(
      _mm256_setr_epi32(0x3F000000, 0x3FC03F80, 0x40404000, 0x40C04080, static_cast<int>(0xBF008000u),
                        static_cast<int>(0xBFC0BF80u), static_cast<int>(0xC040C000u), static_cast<int>(0xC0C0C080u)));
  const __m512i index = kNibble == 0 ? line : _mm512_srli_epi32(line, 4 * kNibble);
  return _mm512_permutexvar_epi16(index, table);
}

struct Mxfp4 : Mxfp4Scale {
  static constexpr int kSteps = 4;
  static constexpr int kLines = 4;
  static constexpr int kVisits = 1;
  static constexpr bool kIsPanel = false;
  template <typename Emit>
  [[gnu::always_inline]] static void decode(Index<0>, const std::byte* line, Emit&& emit) {
    const __m512i codes = load_line(line);
    unroll<4>([&](auto nibble) __attribute__((always_inline)) { emit(nibble, mxfp4_pairs<nibble>(codes)); });
  }
};

}  // namespace

constinit const LinearUnitFunctions kAvx512Bf16Units = {
    {run_unit<Bf16Math, Fp8>, run_unit<Bf16Math, Mxfp4>, run_unit<Bf16Math, Bf16>, nullptr}, {1, 1, 1, 1}};

}  // namespace deepinfer::cpu
