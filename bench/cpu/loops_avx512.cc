// Loops for AVX-512: compiled with wider vectors than the rest, so it holds nothing but these functions.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace deepinfer::bench {

// 24 accumulators: 2 a cycle at a latency of up to 12.

void fma_avx512(int64_t rounds) {
  __m512 sums[24];
#pragma GCC unroll 24
  for (int i = 0; i < 24; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 a = _mm512_set1_ps(0.999f);
  const __m512 b = _mm512_set1_ps(0.001f);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 24
    for (int i = 0; i < 24; ++i) {
      sums[i] = _mm512_fmadd_ps(sums[i], a, b);
      __asm__("" : "+v"(sums[i]));
    }
  }
#pragma GCC unroll 24
  for (int i = 0; i < 24; ++i) __asm__ volatile("" : : "v"(sums[i]));
}

void dot_bf16_avx512(int64_t rounds) {
  __m512 sums[24];
#pragma GCC unroll 24
  for (int i = 0; i < 24; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512bh a = (__m512bh)_mm512_set1_epi32(0x3F7D3F11);
  const __m512bh b = (__m512bh)_mm512_set1_epi32(0x3A833B12);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 24
    for (int i = 0; i < 24; ++i) {
      sums[i] = _mm512_dpbf16_ps(sums[i], a, b);
      __asm__("" : "+v"(sums[i]));
    }
  }
#pragma GCC unroll 24
  for (int i = 0; i < 24; ++i) __asm__ volatile("" : : "v"(sums[i]));
}

void dot_int8_avx512(int64_t rounds) {
  __m512i sums[24];
#pragma GCC unroll 24
  for (int i = 0; i < 24; ++i) sums[i] = _mm512_set1_epi32(i);
  const __m512i a = _mm512_set1_epi32(0x03214365);
  const __m512i b = _mm512_set1_epi32(0x12F834A6);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 24
    for (int i = 0; i < 24; ++i) {
      sums[i] = _mm512_dpbusd_epi32(sums[i], a, b);
      __asm__("" : "+v"(sums[i]));
    }
  }
#pragma GCC unroll 24
  for (int i = 0; i < 24; ++i) __asm__ volatile("" : : "v"(sums[i]));
}

}  // namespace deepinfer::bench
