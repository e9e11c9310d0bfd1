// The narrow number formats of the checkpoint and of the quantisers, as plain scalar functions: BF16, E4M3 (the "fn"
// variant), E8M0 and E2M1. These are the definition; vector kernels are tested against them.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace deepinfer {

// BF16: the upper half of an fp32.
struct BFloat16 {
  uint16_t bits;
};

inline float to_float(BFloat16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16); }

// Rounds to nearest, ties to even. NaN stays NaN.
inline BFloat16 to_bfloat16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  bits += 0x7FFFu + ((bits >> 16) & 1u);
  return {static_cast<uint16_t>(bits >> 16)};
}

inline float round_to_bfloat16(float value) { return to_float(to_bfloat16(value)); }

// E4M3fn: sign, 4 exponent bits (bias 7), 3 mantissa bits; no infinity; 0x7F and 0xFF are NaN; largest value 448.
inline float e4m3_to_float(uint8_t code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  if ((code & 0x7F) == 0x7F) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (code & 0x80) ? -magnitude : magnitude;
}

// Rounds to nearest, ties to even, saturating at 448. Requires: not NaN.
inline uint8_t float_to_e4m3(float value) {
  const uint8_t sign = std::signbit(value) ? 0x80 : 0x00;
  const float magnitude = std::fabs(value);
  if (magnitude >= 448.0f) return sign | 0x7E;
  if (magnitude < 0.015625f) {  // below 2^-6: subnormal, steps of 2^-9; adding 2^14 rounds to that step
    const float rounded = (magnitude + 16384.0f) - 16384.0f;
    return sign | static_cast<uint8_t>(rounded * 512.0f);
  }
  uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  bits += 0x7FFFFu + ((bits >> 20) & 1u);
  const uint32_t code = (bits >> 20) - ((127u - 7u) << 3);
  return sign | static_cast<uint8_t>(code > 0x7E ? 0x7E : code);
}

// E8M0: 2^(code - 127); 255 is NaN; code 0 is the fp32 subnormal 2^-127.
inline float e8m0_to_float(uint8_t code) {
  if (code == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(code == 0 ? 0x00400000u : static_cast<uint32_t>(code) << 23);
}

// E2M1: codes 0..7 are 0, 0.5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign.
inline constexpr float kE2m1Values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                          -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

inline float e2m1_to_float(uint8_t code) { return kE2m1Values[code & 15]; }

// Rounds to nearest, ties to the even code, saturating at 6. Requires: not NaN.
inline uint8_t float_to_e2m1(float value) {
  const uint8_t sign = std::signbit(value) ? 8 : 0;
  const float m = std::fabs(value);
  uint8_t code;
  if (m <= 0.25f)
    code = 0;
  else if (m < 0.75f)
    code = 1;
  else if (m <= 1.25f)
    code = 2;
  else if (m < 1.75f)
    code = 3;
  else if (m <= 2.5f)
    code = 4;
  else if (m < 3.5f)
    code = 5;
  else if (m <= 5.0f)
    code = 6;
  else
    code = 7;
  return sign | code;
}

// The smallest power of two that is >= value, from the bit pattern (a floating log2 can land on the wrong side).
// Requires: value positive and normal.
inline float power_of_two_at_least(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>(((bits >> 23) + ((bits & 0x7FFFFFu) ? 1u : 0u)) << 23);
}

}  // namespace deepinfer
