// The quantisers of ops::FakeQuant, a group at a time: a scale, and values rounded to codes' values before the scale is
// multiplied back. Fake quantisation multiplies; packed rows store both as codes. One computation, so they agree in
// every bit.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "backends/cpu/simd.h"

namespace deepinfer::cpu::DEEPINFER_SIMD_NAMESPACE {

// E4M3 rounding as floats: to 3 mantissa bits, ties to even, below 2^-6 to steps of 2^-9. Requires: |x| <= 448.
inline float round_to_e4m3(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits & 0x80000000u;
  const uint32_t magnitude = bits ^ sign;
  const uint32_t normal = (magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u)) & 0xFFF00000u;
  const float step = (std::bit_cast<float>(magnitude) + 16384.0f) - 16384.0f;
  const uint32_t rounded = magnitude >= 0x3C800000u ? normal : std::bit_cast<uint32_t>(step);
  return std::bit_cast<float>(rounded | sign);
}

// E2M1 rounding as floats: steps of 0.5 below 2, of 1 below 4, of 2 above; ties to the even code. Requires: |x| <= 6.
inline float round_to_e2m1(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits & 0x80000000u;
  const float m = std::bit_cast<float>(bits ^ sign);
  // Adding 2^23 * step rounds to a multiple of the step, ties to even multiples, which here are the even codes.
  const float fine = (m + 4194304.0f) - 4194304.0f;
  const float middle = (m + 8388608.0f) - 8388608.0f;
  const float coarse = (m + 16777216.0f) - 16777216.0f;
  const float rounded = m < 2.0f ? fine : (m < 4.0f ? middle : coarse);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(rounded) | sign);
}

// Codes of values that are exactly an E4M3 or E2M1 number.
inline uint8_t e4m3_code(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7FFFFFFFu;
  const auto steps = static_cast<int32_t>(std::bit_cast<float>(magnitude) * 512.0f);  // of a subnormal
  const int32_t normal = static_cast<int32_t>(magnitude >> 20) - ((127 - 7) << 3);
  return static_cast<uint8_t>((magnitude >= 0x3C800000u ? normal : steps) | (bits >> 24 & 0x80u));
}
inline uint8_t e2m1_code(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7FFFFFFFu;
  const auto halves = static_cast<int32_t>(std::bit_cast<float>(magnitude) * 2.0f);  // below 2 the code itself
  const int32_t large = static_cast<int32_t>(magnitude >> 22) - 0xFC;
  return static_cast<uint8_t>((magnitude >= 0x40000000u ? large : halves) | (bits >> 28 & 8u));
}

// E8M0 code of a power of two that is a normal number.
inline uint8_t e8m0_code(float scale) { return static_cast<uint8_t>(std::bit_cast<uint32_t>(scale) >> 23); }

// Each quantiser: values that share a scale; the largest code's value; the scale for a largest magnitude; rounding.
struct E4m3Group32 {
  static constexpr int kSize = 32;
  static constexpr float kLargest = 448.0f;
  static constexpr bool kPowerOfTwoScale = true;
  static constexpr int kBytes = 32;  // of a group's codes
  static float scale(float largest) { return power_of_two_at_least(std::max(largest, 1e-4f) * (1.0f / 448.0f)); }
  static float round(float x) { return round_to_e4m3(x); }
  static uint8_t scale_code(float scale) { return e8m0_code(scale); }
};
struct E2m1Group16 {
  static constexpr int kSize = 16;
  static constexpr float kLargest = 6.0f;
  static constexpr bool kPowerOfTwoScale = false;
  static constexpr int kBytes = 8;
  static float scale(float largest) { return round_to_e4m3(std::min(std::max(largest, 6.0f / 512.0f) / 6.0f, 448.0f)); }
  static float round(float x) { return round_to_e2m1(x); }
  static uint8_t scale_code(float scale) { return e4m3_code(scale); }
};
struct E2m1Group32 {
  static constexpr int kSize = 32;
  static constexpr float kLargest = 6.0f;
  static constexpr bool kPowerOfTwoScale = true;
  static constexpr int kBytes = 16;
  static float scale(float largest) { return power_of_two_at_least(std::max(largest, 0x1.8p-124f) * (1.0f / 6.0f)); }
  static float round(float x) { return round_to_e2m1(x); }
  static uint8_t scale_code(float scale) { return e8m0_code(scale); }
};

// The bits of magnitudes compare like the magnitudes do, and integers have a maximum that compilers vectorise.
template <int kCount>
inline float largest_magnitude(const float* x) {
  uint32_t largest = 0;
  for (int i = 0; i < kCount; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu);
  return std::bit_cast<float>(largest);
}

// codes[i]: the value of in[i]'s code. Returns the scale. Requires: `codes` is not `in`.
template <typename Quantiser>
inline float quantise_group(float* codes, const float* in) {
  const float scale = Quantiser::scale(largest_magnitude<Quantiser::kSize>(in));
  const float inverse = 1.0f / scale;  // exact for a power of two, and then multiplying is dividing
  for (int i = 0; i < Quantiser::kSize; ++i) {
    const float x = Quantiser::kPowerOfTwoScale ? in[i] * inverse : in[i] / scale;
    codes[i] = Quantiser::round(std::min(std::max(x, -Quantiser::kLargest), Quantiser::kLargest));
  }
  return scale;
}

// `out` may be `in`.
template <typename Quantiser>
inline void fake_quant_row(float* out, const float* in, int64_t width) {
  for (int64_t i = 0; i < width; i += Quantiser::kSize) {
    float codes[Quantiser::kSize];
    const float scale = quantise_group<Quantiser>(codes, in + i);
    for (int j = 0; j < Quantiser::kSize; ++j) out[i + j] = codes[j] * scale;
  }
}

// Codes of all groups, then their scales: see ops::RowType.
template <typename Quantiser>
inline void pack_row(std::byte* row, const float* in, int64_t width) {
  auto* out = reinterpret_cast<uint8_t*>(row);
  uint8_t* scales = out + width / Quantiser::kSize * Quantiser::kBytes;
  for (int64_t i = 0; i < width; i += Quantiser::kSize, out += Quantiser::kBytes) {
    float codes[Quantiser::kSize];
    *scales++ = Quantiser::scale_code(quantise_group<Quantiser>(codes, in + i));
    for (int j = 0; j < Quantiser::kBytes; ++j) {
      out[j] = Quantiser::kBytes == Quantiser::kSize
                   ? e4m3_code(codes[j])
                   : static_cast<uint8_t>(e2m1_code(codes[2 * j]) | e2m1_code(codes[2 * j + 1]) << 4);
    }
  }
}

}  // namespace deepinfer::cpu::DEEPINFER_SIMD_NAMESPACE
