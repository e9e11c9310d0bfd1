// Linear kernels for AVX2, FMA and F16C: 16 rows in two vectors, one column a step.
//
// FP8, Fp8: an E4M3 code shifted into an FP16 is its value times 2^-8, subnormals included; the factor is repaid on the
// sum.
//
// MXFP4, Mxfp4: two byte shuffles give the bytes of BF16 pairs, and a shift or a mask makes fp32 of each.
//
// Fp8Lanes, Mxfp4Lanes: a code whose sign lies at bit 31 of a lane, and whose magnitude ends at the exponent's second
// bit, is an fp32: its value times 2^-120 or 2^-126. Some stay subnormal, which AMD processors multiply at full speed
// (and others do not). Inputs come times 2^88, so that products keep their bits; the rest is repaid on the sum. Shifts
// take the ports that multiply, masks and loads do not, so linear_pack.cc lays codes out for the fewest shifts.
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

constexpr int kWalkTokens = 16;
constexpr int kPassTokens = 6;  // their sums, weights and inputs are all that 16 registers hold
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

// Of BF16 pairs, one row a lane.
inline Vec even_of(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
inline Vec odd_of(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
}

struct Bf16 : Unscaled {
  static constexpr int kSteps = 2;
  static constexpr int kLines = 16;
  static constexpr int kVisits = 2;
  static constexpr bool kIsPanel = false;
  template <int kVisit, typename Emit>
  [[gnu::always_inline]] static void decode(Index<kVisit>, const std::byte* line, Emit&& emit) {
    const auto weights = [](__m256i pairs) __attribute__((always_inline)) {
      return kVisit == 0 ? even_of(pairs) : odd_of(pairs);
    };
    emit(Index<kVisit>{}, weights(load_line(line)), weights(load_line(line + 32)));
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

// The lanes at `from`, each with a row's four codes of FP8 or eight of MXFP4. Beside the codes that lie in them, masked
// or shifted, there are those in the exclusive or of a lane with itself moved by a byte: together they fill the lane.
inline __m256i lanes(const std::byte* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
inline __m256i raised_lanes(const std::byte* from) { return lanes(from - 2); }
inline __m256i mixed_lanes(const std::byte* from) { return _mm256_xor_si256(lanes(from), lanes(from + 1)); }

template <int kStep, unsigned kMask, int kShift, typename Load, typename Emit>
[[gnu::always_inline]] inline void emit_lanes(const std::byte* line, Load&& load, Emit&& emit) {
  const auto weights = [&](const std::byte* from) __attribute__((always_inline)) {
    const __m256i codes = kShift == 0 ? load(from) : _mm256_slli_epi32(load(from), kShift);
    return _mm256_castsi256_ps(_mm256_and_si256(codes, _mm256_set1_epi32(static_cast<int>(kMask))));
  };
  emit(Index<kStep>{}, weights(line), weights(line + 32));
}

struct Fp8Lanes {
  static constexpr int kSteps = 4;
  static constexpr int kLines = 8;
  static constexpr int kVisits = 2;
  static constexpr int kScaleBytes = 4;
  static constexpr bool kIsPanel = false;
  static constexpr bool kSharesInput = true;
  static Vec scale(const std::byte* scales, int part) { return Fp8::scale(scales, part); }
  static Vec finish(Vec sum) { return _mm256_mul_ps(sum, _mm256_set1_ps(0x1p32f)); }

  template <int kVisit, typename Emit>
  [[gnu::always_inline]] static void decode(Index<kVisit>, const std::byte* line, Emit&& emit) {
    constexpr unsigned kMask = 0x87F00000;
    if constexpr (kVisit == 0) {
      emit_lanes<0, kMask, 0>(line, lanes, emit);
      emit_lanes<1, kMask, 0>(line, raised_lanes, emit);
    } else {
      emit_lanes<2, kMask, 4>(line, mixed_lanes, emit);
      emit_lanes<3, kMask, 20>(line, mixed_lanes, emit);
    }
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

  template <int kVisit, typename Emit>
  [[gnu::always_inline]] static void decode(Index<kVisit>, const std::byte* line, Emit&& emit) {
    const __m256i low_table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0, -128, -64, 0, 64, -128, -64, 0, 0, -128, -64, 0, 64, -128, -64));
    const __m256i high_table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 63, 63, 63, 64, 64, 64, 64, -128, -65, -65, -65, -64, -64, -64, -64));
    __m256i codes = load_line(line + kVisit / 2 * 32);
    if constexpr (kVisit % 2 == 1) codes = _mm256_srli_epi16(codes, 4);
    codes = _mm256_and_si256(codes, _mm256_set1_epi8(15));
    const __m256i low = _mm256_shuffle_epi8(low_table, codes);
    const __m256i high = _mm256_shuffle_epi8(high_table, codes);
    const __m256i upper = _mm256_unpacklo_epi8(low, high);  // rows 0-7, a pair of columns a lane
    const __m256i lower = _mm256_unpackhi_epi8(low, high);
    emit(Index<kVisit * 2>{}, even_of(upper), even_of(lower));
    emit(Index<kVisit * 2 + 1>{}, odd_of(upper), odd_of(lower));
  }
};

struct Mxfp4Lanes {
  static constexpr int kSteps = 8;
  static constexpr int kLines = 4;
  static constexpr int kVisits = 4;
  static constexpr int kScaleBytes = 16;
  static constexpr bool kIsPanel = false;
  static constexpr bool kSharesInput = true;
  static Vec scale(const std::byte* scales, int part) { return Mxfp4::scale(scales, part); }
  static Vec finish(Vec sum) { return _mm256_mul_ps(sum, _mm256_set1_ps(0x1p38f)); }

  template <int kVisit, typename Emit>
  [[gnu::always_inline]] static void decode(Index<kVisit>, const std::byte* line, Emit&& emit) {
    constexpr unsigned kMask = 0x81C00000;
    if constexpr (kVisit == 0) {
      emit_lanes<0, kMask, 0>(line, lanes, emit);
      emit_lanes<1, kMask, 4>(line, lanes, emit);
    } else if constexpr (kVisit == 1) {
      emit_lanes<2, kMask, 0>(line, raised_lanes, emit);
      emit_lanes<3, kMask, 4>(line, raised_lanes, emit);
    } else if constexpr (kVisit == 2) {
      emit_lanes<4, kMask, 2>(line, mixed_lanes, emit);
      emit_lanes<5, kMask, 6>(line, mixed_lanes, emit);
    } else {
      emit_lanes<6, kMask, 18>(line, mixed_lanes, emit);
      emit_lanes<7, kMask, 22>(line, mixed_lanes, emit);
    }
  }
};

}  // namespace

constinit const LinearUnitFunctions kAvx2Units = {
    {run_unit<Fp32Math, Fp8>, run_unit<Fp32Math, Mxfp4>, run_unit<Fp32Math, Bf16>, run_unit<Fp32Math, F32>},
    {1, 1, 1, 1}};

constinit const LinearUnitFunctions kAvx2LanesUnits = {
    {run_unit<Fp32Math, Fp8Lanes>, run_unit<Fp32Math, Mxfp4Lanes>, run_unit<Fp32Math, Bf16>, run_unit<Fp32Math, F32>},
    {0x1p88f, 0x1p88f, 1, 1}};

}  // namespace deepinfer::cpu
