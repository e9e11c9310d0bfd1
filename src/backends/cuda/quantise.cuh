// The quantisers of ops::FakeQuant on the card: the bits of backends/cpu/group_quantisers.h, computed by the same
// steps.
//
// A thread has eight neighbouring values; the threads of a group are neighbours in a warp and hold it whole.
#pragma once

#include <cstdint>

#include "backends/cuda/values.cuh"
#include "ops/elementwise.h"

namespace deepinfer::cuda {

// To 3 mantissa bits, ties to even, below 2^-6 to steps of 2^-9. Requires: |x| <= 448.
__device__ inline float round_to_e4m3(float x) {
  const uint32_t bits = __float_as_uint(x), sign = bits & 0x80000000u, magnitude = bits ^ sign;
  const uint32_t normal = (magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u)) & 0xFFF00000u;
  const float step = __fsub_rn(__fadd_rn(__uint_as_float(magnitude), 16384.0f), 16384.0f);
  return __uint_as_float((magnitude >= 0x3C800000u ? normal : __float_as_uint(step)) | sign);
}

// Steps of 0.5 below 2, of 1 below 4, of 2 above; ties to the even code. Requires: |x| <= 6.
__device__ inline float round_to_e2m1(float x) {
  const uint32_t bits = __float_as_uint(x), sign = bits & 0x80000000u;
  const float m = __uint_as_float(bits ^ sign);
  // Adding 2^23 * step rounds to a multiple of the step, ties to even multiples, which here are the even codes.
  const float unit = m < 2.0f ? 4194304.0f : (m < 4.0f ? 8388608.0f : 16777216.0f);
  return __uint_as_float(__float_as_uint(__fsub_rn(__fadd_rn(m, unit), unit)) | sign);
}

// Codes of values that are exactly an E4M3 or E2M1 number, and back.
__device__ inline uint32_t e4m3_code(float x) {
  const uint32_t bits = __float_as_uint(x), magnitude = bits & 0x7FFFFFFFu;
  const uint32_t steps = static_cast<uint32_t>(__uint_as_float(magnitude) * 512.0f);  // of a subnormal
  return (magnitude >= 0x3C800000u ? (magnitude >> 20) - ((127 - 7) << 3) : steps) | (bits >> 24 & 0x80u);
}
__device__ inline uint32_t e2m1_code(float x) {
  const uint32_t bits = __float_as_uint(x), magnitude = bits & 0x7FFFFFFFu;
  const uint32_t halves = static_cast<uint32_t>(__uint_as_float(magnitude) * 2.0f);  // below 2 the code itself
  return (magnitude >= 0x40000000u ? (magnitude >> 22) - 0xFCu : halves) | (bits >> 28 & 8u);
}
// The code's bits moved to the exponent's and mantissa's place, subnormal numbers included; then the bias put right.
__device__ inline float e4m3_value(uint32_t code) {
  return __uint_as_float((code & 0x7Fu) << 20 | (code & 0x80u) << 24) * 0x1p120f;
}
__device__ inline float e2m1_value(uint32_t code) {
  return __uint_as_float((code & 7u) << 22 | (code & 8u) << 28) * 0x1p126f;
}
__device__ inline float e8m0_value(uint32_t code) { return __uint_as_float(code == 0 ? 0x00400000u : code << 23); }

// The smallest power of two that is >= value. Requires: value positive and normal.
__device__ inline float power_of_two_at_least(float value) {
  return __uint_as_float((__float_as_uint(value) + 0x7FFFFFu) & 0xFF800000u);
}

struct E4m3Group32 {
  static constexpr int kThreads = 4;  // that share a scale
  static constexpr float kLargest = 448.0f;
  static constexpr bool kPowerOfTwoScale = true;
  __device__ static float scale(float largest) {
    return power_of_two_at_least(__fmul_rn(fmaxf(largest, 1e-4f), 1.0f / 448.0f));
  }
  __device__ static float round(float x) { return round_to_e4m3(x); }
  __device__ static uint32_t scale_code(float scale) { return __float_as_uint(scale) >> 23; }
};
struct E2m1Group16 {
  static constexpr int kThreads = 2;
  static constexpr float kLargest = 6.0f;
  static constexpr bool kPowerOfTwoScale = false;
  __device__ static float scale(float largest) {
    return round_to_e4m3(fminf(__fdiv_rn(fmaxf(largest, 6.0f / 512.0f), 6.0f), 448.0f));
  }
  __device__ static float round(float x) { return round_to_e2m1(x); }
  __device__ static uint32_t scale_code(float scale) { return e4m3_code(scale); }
};
struct E2m1Group32 {
  static constexpr int kThreads = 4;
  static constexpr float kLargest = 6.0f;
  static constexpr bool kPowerOfTwoScale = true;
  __device__ static float scale(float largest) {
    return power_of_two_at_least(__fmul_rn(fmaxf(largest, 0x1.8p-124f), 1.0f / 6.0f));
  }
  __device__ static float round(float x) { return round_to_e2m1(x); }
  __device__ static uint32_t scale_code(float scale) { return __float_as_uint(scale) >> 23; }
};

// The scale of the group that `in` and the neighbouring threads' eight make up. Called by whole warps.
template <typename Quantiser>
__device__ inline float scale_of_group(const float (&in)[8]) {
  uint32_t largest = 0;  // the bits of magnitudes compare like the magnitudes do
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = max(largest, __float_as_uint(in[i]) & 0x7FFFFFFFu);
#pragma unroll
  for (int offset = 1; offset < Quantiser::kThreads; offset *= 2) {
    largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, offset));
  }
  return Quantiser::scale(__uint_as_float(largest));
}

// The reciprocal of a normal power of two by its bits; exact, and then multiplying is dividing. That of 2^127 is no
// normal number, but nothing finite has so large a scale.
__device__ inline float inverse_of_power_of_two(float scale) {
  return __uint_as_float(0x7F000000u - __float_as_uint(scale));
}

// codes[i]: the value of in[i]'s code. Returns the group's scale. Called by whole warps.
template <typename Quantiser>
__device__ inline float quantise8(float (&codes)[8], const float (&in)[8]) {
  const float scale = scale_of_group<Quantiser>(in), inverse = inverse_of_power_of_two(scale);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float x = Quantiser::kPowerOfTwoScale ? __fmul_rn(in[i], inverse) : __fdiv_rn(in[i], scale);
    codes[i] = Quantiser::round(fminf(fmaxf(x, -Quantiser::kLargest), Quantiser::kLargest));
  }
  return scale;
}

// v through the quantiser and back. Called by whole warps.
template <typename Quantiser>
__device__ inline void fake_quantise8(float (&v)[8]) {
  float codes[8];
  const float scale = quantise8<Quantiser>(codes, v);
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = __fmul_rn(codes[i], scale);
}

// By the card's own conversions, two values at a time: they round to nearest even, subnormal codes included, keep signs
// of zeros and end at the largest code, as the steps above do.
template <>
__device__ inline void fake_quantise8<E4m3Group32>(float (&v)[8]) {
  const float scale = scale_of_group<E4m3Group32>(v), inverse = inverse_of_power_of_two(scale);
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    uint16_t codes;
    uint32_t halves;
    float a, b;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
        : "=h"(codes)
        : "f"(__fmul_rn(v[i + 1], inverse)), "f"(__fmul_rn(v[i], inverse)));
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
    asm("{.reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
        : "=f"(a), "=f"(b)
        : "r"(halves));
    v[i] = __fmul_rn(a, scale), v[i + 1] = __fmul_rn(b, scale);
  }
}

// Calls body with the quantiser's type.
template <typename Body>
void with_quantiser(ops::FakeQuant kind, Body&& body) {
  switch (kind) {
    case ops::FakeQuant::kE4m3Group32:
      return body(E4m3Group32());
    case ops::FakeQuant::kE2m1Group16:
      return body(E2m1Group16());
    case ops::FakeQuant::kE2m1Group32:
      return body(E2m1Group32());
  }
}

}  // namespace deepinfer::cuda
