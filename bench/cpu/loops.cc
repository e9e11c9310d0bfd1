// Loops for the floor, AVX2.
#include <immintrin.h>

#include "cpu/ceilings.h"

namespace deepinfer::bench {

// 12 accumulators: 2 a cycle at a latency of up to 6. 12 * 8 lanes * 2 operations a round.
void fma_avx2(int64_t rounds) {
  __m256 sums[12];
#pragma GCC unroll 12
  for (int i = 0; i < 12; ++i) sums[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 a = _mm256_set1_ps(0.999f);
  const __m256 b = _mm256_set1_ps(0.001f);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) {
      sums[i] = _mm256_fmadd_ps(sums[i], a, b);
      __asm__("" : "+x"(sums[i]));
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < 12; ++i) __asm__ volatile("" : : "x"(sums[i]));
}

int64_t read_streams(const std::byte* from, int64_t bytes) {
  constexpr int kStreams = 8;
  constexpr int64_t kLine = 64;
  const int64_t stream_bytes = bytes / (kStreams * kLine) * kLine;
  __m256i sums[kStreams];
#pragma GCC unroll 8
  for (int i = 0; i < kStreams; ++i) sums[i] = _mm256_setzero_si256();
  for (int64_t at = 0; at < stream_bytes; at += kLine) {
#pragma GCC unroll 8
    for (int i = 0; i < kStreams; ++i) {
      const __m256i* line = reinterpret_cast<const __m256i*>(from + i * stream_bytes + at);
      __builtin_prefetch(reinterpret_cast<const std::byte*>(line) + 2048);
      sums[i] = _mm256_xor_si256(sums[i], _mm256_xor_si256(_mm256_loadu_si256(line), _mm256_loadu_si256(line + 1)));
    }
  }
#pragma GCC unroll 8
  for (int i = 1; i < kStreams; ++i) sums[0] = _mm256_xor_si256(sums[0], sums[i]);
  return _mm256_extract_epi64(sums[0], 0) ^ _mm256_extract_epi64(sums[0], 2);
}

}  // namespace deepinfer::bench
