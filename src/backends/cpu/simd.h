// Vf: sixteen floats, the unit in which the CPU kernels reduce. Included once a translation unit with one of
// DEEPINFER_SIMD_REFERENCE, DEEPINFER_SIMD_AVX2, DEEPINFER_SIMD_AVX512 defined; everything lies in a namespace of that
// name, so that code compiled for different processors never shares a symbol.
//
// Every operation is one IEEE operation a lane and sums over lanes use one fixed tree, so all three give the same bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/number_formats.h"

#if defined(DEEPINFER_SIMD_REFERENCE)
#define DEEPINFER_SIMD_NAMESPACE reference
#elif defined(DEEPINFER_SIMD_AVX2)
#include <immintrin.h>
#define DEEPINFER_SIMD_NAMESPACE avx2
#elif defined(DEEPINFER_SIMD_AVX512)
#include <immintrin.h>
#define DEEPINFER_SIMD_NAMESPACE avx512
#else
#error "define DEEPINFER_SIMD_REFERENCE, DEEPINFER_SIMD_AVX2 or DEEPINFER_SIMD_AVX512"
#endif

namespace deepinfer::cpu::DEEPINFER_SIMD_NAMESPACE {

inline constexpr int64_t kLanes = 16;

#if defined(DEEPINFER_SIMD_REFERENCE)

struct Vf {
  float lane[16];
};

inline Vf broadcast(float x) {
  Vf v;
  for (float& lane : v.lane) lane = x;
  return v;
}
inline Vf load(const float* p) {
  Vf v;
  for (int i = 0; i < 16; ++i) v.lane[i] = p[i];
  return v;
}
inline void store(float* p, Vf v) {
  for (int i = 0; i < 16; ++i) p[i] = v.lane[i];
}
inline Vf add(Vf a, Vf b) {
  for (int i = 0; i < 16; ++i) a.lane[i] += b.lane[i];
  return a;
}
inline Vf mul(Vf a, Vf b) {
  for (int i = 0; i < 16; ++i) a.lane[i] *= b.lane[i];
  return a;
}
inline Vf fmadd(Vf a, Vf b, Vf c) {
  for (int i = 0; i < 16; ++i) c.lane[i] = std::fma(a.lane[i], b.lane[i], c.lane[i]);
  return c;
}
inline Vf relu(Vf a) {
  for (float& lane : a.lane) lane = lane > 0.0f ? lane : 0.0f;
  return a;
}
// Sixteen E4M3 codes, none of them NaN, as floats.
inline Vf load_e4m3(const std::byte* p) {
  Vf v;
  for (int i = 0; i < 16; ++i) v.lane[i] = e4m3_to_float(static_cast<uint8_t>(p[i]));
  return v;
}
// Sixteen E2M1 codes as floats, two in a byte, the lower nibble first.
inline Vf load_e2m1(const std::byte* p) {
  Vf v;
  for (int i = 0; i < 16; ++i) v.lane[i] = e2m1_to_float(static_cast<uint8_t>(p[i / 2] >> (i % 2 * 4)));
  return v;
}
inline float sum_lanes(Vf v) {
  float x[8];
  for (int i = 0; i < 8; ++i) x[i] = v.lane[i] + v.lane[i + 8];
  for (int i = 0; i < 4; ++i) x[i] += x[i + 4];
  return (x[0] + x[2]) + (x[1] + x[3]);
}

#else

// Codes become FP16 numbers by moving bits; the processor widens those, subnormal ones too, without loss.
// Sixteen E4M3 codes as FP16 numbers of 2^-8 the value: the same mantissa's upper bits, a bias of 15 in place of 7.
inline __m256i e4m3_to_half(const std::byte* p) {
  const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  // The sign, spread over the upper byte, is moved into the exponent's first bit as well.
  return _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(static_cast<int16_t>(0xBFFF)));
}
// Sixteen E2M1 codes as FP16 numbers, whose lower bytes are 0.
inline __m256i e2m1_to_half(const std::byte* p) {
  const __m128i pairs = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  const __m128i nibble = _mm_set1_epi8(15);
  const __m128i codes =
      _mm_unpacklo_epi8(_mm_and_si128(pairs, nibble), _mm_and_si128(_mm_srli_epi16(pairs, 4), nibble));
  const __m128i upper_bytes = _mm_set_epi64x(static_cast<int64_t>(0xC6C4C2C0BEBCB880u), 0x464442403E3C3800);
  return _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_shuffle_epi8(upper_bytes, codes)), 8);
}

#if defined(DEEPINFER_SIMD_AVX2)

struct Vf {
  __m256 lo, hi;
};

inline Vf broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Vf load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Vf v) {
  _mm256_storeu_ps(p, v.lo);
  _mm256_storeu_ps(p + 8, v.hi);
}
inline Vf add(Vf a, Vf b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline Vf mul(Vf a, Vf b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline Vf fmadd(Vf a, Vf b, Vf c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
inline Vf relu(Vf a) {  // the constant second: max(x, 0) returns 0 for NaN, like the reference
  return {_mm256_max_ps(a.lo, _mm256_setzero_ps()), _mm256_max_ps(a.hi, _mm256_setzero_ps())};
}
inline Vf widen_halves(__m256i halves) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}
inline float sum_lanes(Vf v) {
  const __m256 eight = _mm256_add_ps(v.lo, v.hi);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

#else

struct Vf {
  __m512 v;
};

inline Vf broadcast(float x) { return {_mm512_set1_ps(x)}; }
inline Vf load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Vf a) { _mm512_storeu_ps(p, a.v); }
inline Vf add(Vf a, Vf b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vf mul(Vf a, Vf b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vf fmadd(Vf a, Vf b, Vf c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vf relu(Vf a) { return {_mm512_max_ps(a.v, _mm512_setzero_ps())}; }
inline Vf widen_halves(__m256i halves) { return {_mm512_cvtph_ps(halves)}; }
inline float sum_lanes(Vf v) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v.v), _mm512_extractf32x8_ps(v.v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

#endif

inline Vf load_e4m3(const std::byte* p) { return mul(widen_halves(e4m3_to_half(p)), broadcast(256.0f)); }
inline Vf load_e2m1(const std::byte* p) { return widen_halves(e2m1_to_half(p)); }

#endif

// The scalar functions below are written so that the compiler can vectorise loops over them; each step is one IEEE
// operation, so how it vectorises does not change a bit.

// exp(x) with a relative error under 2e-7 in [-87, 88]; 0 below, saturating near 1.65e38 above.
inline float exp_f32(float x) {
  const float clamped = x > 88.0f ? 88.0f : (x < -87.0f ? -87.0f : x);
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding and subtracting rounds to an integer
  const float n = std::fma(clamped, 1.44269504088896341f, kRound) - kRound;
  float r = std::fma(n, -0.693359375f, clamped);
  r = std::fma(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = std::fma(p, r, 1.3981999507e-3f);
  p = std::fma(p, r, 8.3334519073e-3f);
  p = std::fma(p, r, 4.1665795894e-2f);
  p = std::fma(p, r, 1.6666665459e-1f);
  p = std::fma(p, r, 5.0000001201e-1f);
  p = std::fma(p, r * r, r) + 1.0f;
  const float scale = std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
  return x < -87.0f ? 0.0f : p * scale;
}

inline float sigmoid_f32(float x) { return 1.0f / (1.0f + exp_f32(-x)); }

inline float round_bf16_if(float x, bool enabled) { return enabled ? round_to_bfloat16(x) : x; }

}  // namespace deepinfer::cpu::DEEPINFER_SIMD_NAMESPACE
