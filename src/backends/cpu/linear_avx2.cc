// Linear kernels for AVX2, FMA and F16C: 16 rows in two vectors, one column a step.
//
// FP8, Fp8: an E4M3 code shifted into an FP16 is its value times 2^-8, subnormals included; the factor is repaid on the
// sum.
//
// FP8, Fp8Lanes: a code shifted into an fp32 is its value times 2^-120. Its subnormals stay subnormal, which AMD
// processors multiply at full speed (and others do not), and shifts are half the work of converting FP16 there. Inputs
// come times 2^88, so that products keep their bits; the rest is repaid on the sum.
//
// MXFP4: two byte shuffles give the bytes of BF16 pairs, and a shift or a mask makes fp32 of each.
#include <immintrin.h>

#include "backends/cpu/linear_unit.h"

namespace deepinfer::cpu {
namespace {

using Vec = __m256;
constexpr int kVecs = 2;

inline Vec zero() { return _mm256_setzero_ps(); }
inline Vec load(const float* from) { return _mm256_load_ps(from); }
inline void store(float* to, Vec v) { _mm256_store_ps(to, v); }
inline Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline void store_weights(std::byte* to, Vec v) { _mm256_store_ps(reinterpret_cast<float*>(to), v); }
inline __m256i load_line(const std::byte* from) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(from)); }

constexpr int kWalkTokens = 6;
constexpr int kPanelTiles = 1;
constexpr int walk_tiles(int num_tokens) { return num_tokens == 1 ? 4 : num_tokens == 2 ? 2 : 1; }

#include "backends/cpu/linear_tiles.inc"

struct Fp32Math {
  using Weights = Vec;
  static Weights load_weights(const std::byte* from) { return _mm256_load_ps(reinterpret_cast<const float*>(from)); }
  static Vec input(const std::byte* from) { return _mm256_broadcast_ss(reinterpret_cast<const float*>(from)); }
  static Vec multiply_add(Weights weights, Vec input, Vec sum) { return _mm256_fmadd_ps(weights, input, sum); }
};

struct Unscaled {
  static constexpr int kScaleBytes = 0;
  static Vec scale(const std::byte*, int) { return zero(); }
  static Vec finish(Vec sum) { return sum; }
};

struct F32 : Unscaled {
  static constexpr int kSteps = 1;
  static constexpr int kLines = 32;
  static constexpr int kVisits = 1;
  static constexpr bool kIsPanel = true;
  template <int kVisit, typename Emit>
  [[gnu::always_inline]] static void decode(Index<kVisit>, const std::byte* line, Emit&& emit) {
    emit(Index<0>{}, Fp32Math::load_weights(line), Fp32Math::load_weights(line + 32));
  }
};

// Of pairs of 16 bits of rows 0-7 and 8-15, one row a lane: step kFirst is what kMask leaves of the low halves, shifted
// up, the next of the high ones.
template <int kFirst, unsigned kMask, typename Emit>
[[gnu::always_inline]] inline void emit_pairs(__m256i upper, __m256i lower, Emit&& emit) {
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(kMask << 16));
  const auto low = [&](__m256i pairs) __attribute__((always_inline)) {
    const __m256i moved = _mm256_slli_epi32(pairs, 16);
    return _mm256_castsi256_ps(kMask == 0xFFFF ? moved : _mm256_and_si256(moved, mask));
  };
  emit(Index<kFirst>{}, low(upper), low(lower));
  emit(Index<kFirst + 1>{}, _mm256_castsi256_ps(_mm256_and_si256(upper, mask)),
       _mm256_castsi256_ps(_mm256_and_si256(lower, mask)));
}

struct Bf16 : Unscaled {
  static constexpr int kSteps = 2;
  static constexpr int kLines = 16;
  static constexpr int kVisits = 1;
  static constexpr bool kIsPanel = false;
  template <int kVisit, typename Emit>
  [[gnu::always_inline]] static void decode(Index<kVisit>, const std::byte* line, Emit&& emit) {
    emit_pairs<0, 0xFFFF>(load_line(line), load_line(line + 32), emit);
  }
};

struct Fp8 {
  static constexpr int kSteps = 4;
  static constexpr int kLines = 8;
  static constexpr int kVisits = 2;
  static constexpr int kScaleBytes = 4;
  static constexpr bool kIsPanel = false;
  static Vec scale(const std::byte* scales, int) { return _mm256_broadcast_ss(reinterpret_cast<const float*>(scales)); }
  static Vec finish(Vec sum) { return _mm256_mul_ps(sum, _mm256_set1_ps(256.0f)); }

  // Sixteen codes in the high bytes of words, one row a word.
  template <int kStep, typename Emit>
  [[gnu::always_inline]] static void decode_column(__m256i words, Emit&& emit) {
    const __m256i halves = _mm256_and_si256(_mm256_srai_epi16(words, 1), _mm256_set1_epi16(static_cast<short>(0xBF80)));
    emit(Index<kStep>{}, _mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
         _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)));
  }
  template <int kVisit, typename Emit>
  [[gnu::always_inline]] static void decode(Index<kVisit>, const std::byte* line, Emit&& emit) {
    const __m256i codes = load_line(line + kVisit * 32);
    decode_column<kVisit * 2>(_mm256_slli_epi16(codes, 8), emit);
    decode_column<kVisit * 2 + 1>(codes, emit);
  }
};

struct Fp8Lanes {
  static constexpr int kSteps = 4;
  static constexpr int kLines = 8;
  static constexpr int kVisits = 2;
  static constexpr int kScaleBytes = 4;
  static constexpr bool kIsPanel = false;
  static Vec scale(const std::byte* scales, int part) { return Fp8::scale(scales, part); }
  static Vec finish(Vec sum) { return _mm256_mul_ps(sum, _mm256_set1_ps(0x1p32f)); }

  template <int kVisit, typename Emit>
  [[gnu::always_inline]] static void decode(Index<kVisit>, const std::byte* line, Emit&& emit) {
    __m256i upper = load_line(line);
    __m256i lower = load_line(line + 32);
    if constexpr (kVisit == 0) {
      upper = _mm256_slli_epi16(upper, 8);
      lower = _mm256_slli_epi16(lower, 8);
    }
    emit_pairs<kVisit * 2, 0x87F0>(_mm256_srai_epi16(upper, 4), _mm256_srai_epi16(lower, 4), emit);
  }
};

struct Mxfp4 {
  static constexpr int kSteps = 8;
  static constexpr int kLines = 4;
  static constexpr int kVisits = 4;
  static constexpr int kScaleBytes = 16;
  static constexpr bool kIsPanel = false;
  // E8M0 as fp32 bits; the smallest code, 2^-127, is the one that is no shifted exponent.
  static Vec scale(const std::byte* scales, int part) {
    const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales + part * 8));
    const __m256i exponents = _mm256_slli_epi32(_mm256_cvtepu8_epi32(codes), 23);
    return _mm256_castsi256_ps(_mm256_max_epi32(exponents, _mm256_set1_epi32(0x00400000)));
  }
  static Vec finish(Vec sum) { return sum; }

  template <int kFirst, typename Emit>
  [[gnu::always_inline]] static void decode_pairs(__m256i nibbles, Emit&& emit) {
    const __m256i low_table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0, -128, -64, 0, 64, -128, -64, 0, 0, -128, -64, 0, 64, -128, -64));
    const __m256i high_table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 63, 63, 63, 64, 64, 64, 64, -128, -65, -65, -65, -64, -64, -64, -64));
    const __m256i low = _mm256_shuffle_epi8(low_table, nibbles);
    const __m256i high = _mm256_shuffle_epi8(high_table, nibbles);
    emit_pairs<kFirst, 0xFFFF>(_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high), emit);
  }
  template <int kVisit, typename Emit>
  [[gnu::always_inline]] static void decode(Index<kVisit>, const std::byte* line, Emit&& emit) {
    __m256i codes = load_line(line + kVisit / 2 * 32);
    if constexpr (kVisit % 2 == 1) codes = _mm256_srli_epi16(codes, 4);
    decode_pairs<kVisit * 2>(_mm256_and_si256(codes, _mm256_set1_epi8(15)), emit);
  }
};

}  // namespace

constinit const LinearUnitFunctions kAvx2Units = {
    {run_unit<Fp32Math, Fp8>, run_unit<Fp32Math, Mxfp4>, run_unit<Fp32Math, Bf16>, run_unit<Fp32Math, F32>},
    {1, 1, 1, 1}};

constinit const LinearUnitFunctions kAvx2LanesUnits = {
    {run_unit<Fp32Math, Fp8Lanes>, run_unit<Fp32Math, Mxfp4>, run_unit<Fp32Math, Bf16>, run_unit<Fp32Math, F32>},
    {0x1p88f, 1, 1, 1}};

}  // namespace deepinfer::cpu
