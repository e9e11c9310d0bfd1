// The quantisers and the packed rows by the scalar definitions of base/number_formats.h: what kernels are held to.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <vector>

#include "base/number_formats.h"
#include "ops/elementwise.h"
#include "ops/rigs.h"

namespace deepinfer::ops {

inline constexpr FakeQuant kKinds[] = {FakeQuant::kE4m3Group32, FakeQuant::kE2m1Group16, FakeQuant::kE2m1Group32};
inline constexpr RowType kPackedTypes[] = {RowType::kE4m3Group32, RowType::kE2m1Group16, RowType::kE2m1Group32};

// The quantiser whose codes a packed type holds.
inline FakeQuant own_quantiser(RowType type) {
  for (int i = 0; i < 3; ++i) {
    if (type == kPackedTypes[i]) return kKinds[i];
  }
  throw std::logic_error("not a packed type");
}

inline void quantise_group(FakeQuant kind, const float* x, float* out) {
  float largest = 0;
  for (int64_t i = 0; i < quantiser_group(kind); ++i) largest = std::max(largest, std::fabs(x[i]));
  float scale = 0;
  switch (kind) {
    case FakeQuant::kE4m3Group32:
      scale = power_of_two_at_least(std::max(largest, 1e-4f) * (1.0f / 448));
      break;
    case FakeQuant::kE2m1Group16:
      scale = e4m3_to_float(float_to_e4m3(std::max(largest, 6 * 0x1p-9f) / 6));
      break;
    case FakeQuant::kE2m1Group32:
      scale = power_of_two_at_least(std::max(largest, 6 * 0x1p-126f) * (1.0f / 6));
      break;
  }
  for (int64_t i = 0; i < quantiser_group(kind); ++i) {
    const float scaled = x[i] / scale;
    out[i] = scale * (kind == FakeQuant::kE4m3Group32 ? e4m3_to_float(float_to_e4m3(scaled))
                                                      : e2m1_to_float(float_to_e2m1(scaled)));
  }
}

inline std::vector<float> quantised(FakeQuant kind, const std::vector<float>& x) {
  std::vector<float> out(x.size());
  for (size_t i = 0; i < x.size(); i += quantiser_group(kind)) quantise_group(kind, x.data() + i, out.data() + i);
  return out;
}

// The values of a packed row, read byte by byte as ops/row_table.h lays it out.
inline std::vector<float> unpacked(RowType type, const std::byte* row, int64_t width) {
  const auto byte_at = [row](int64_t i) { return static_cast<uint8_t>(row[i]); };
  std::vector<float> values;
  for (int64_t i = 0; i < width; ++i) {
    const bool fp8 = type == RowType::kE4m3Group32;
    const uint8_t scale_code = byte_at((fp8 ? width : width / 2) + i / row_group(type));
    const float scale = type == RowType::kE2m1Group16 ? e4m3_to_float(scale_code) : e8m0_to_float(scale_code);
    const int nibble = i % 2 == 0 ? byte_at(i / 2) & 15 : byte_at(i / 2) >> 4;
    values.push_back(scale * (fp8 ? e4m3_to_float(byte_at(i)) : e2m1_to_float(static_cast<uint8_t>(nibble))));
  }
  return values;
}

// Rows of every magnitude between 2^low and 2^high, subnormal ones included, a zero now and then.
inline std::vector<float> rows_of_every_magnitude(Random& random, int64_t rows, int64_t width, int low, int high) {
  std::vector<float> x(rows * width);
  for (int64_t r = 0; r < rows; ++r) {
    const int exponent = static_cast<int>(random.between(low, high));
    for (int64_t c = 0; c < width; ++c) {
      const int spread = static_cast<int>(random.between(-12, 0));
      x[r * width + c] = random.bits() % 16 == 0 ? std::copysign(0.0f, random.normal())
                                                 : std::ldexp(random.normal(), exponent + spread);
    }
  }
  return x;
}

// The first value of a group fixes the scale; the others lie on codes, half way between two, and one bit beside.
inline std::vector<float> groups_of_ties(Random& random, FakeQuant kind, int num_groups) {
  const bool fp8 = kind == FakeQuant::kE4m3Group32;
  const float top = fp8 ? 448.0f : 6.0f;
  std::vector<float> x;
  for (int group = 0; group < num_groups; ++group) {
    const float scale = kind == FakeQuant::kE2m1Group16
                            ? e4m3_to_float(static_cast<uint8_t>(random.between(1, 0x7E)))
                            : std::ldexp(1.0f, static_cast<int>(random.between(fp8 ? -20 : -120, 100)));
    x.push_back(top * scale);
    for (int64_t i = 1; i < quantiser_group(kind); ++i) {
      const auto code = static_cast<uint8_t>(random.between(0, fp8 ? 0x7D : 6));
      const float low = fp8 ? e4m3_to_float(code) : e2m1_to_float(code);
      const float high = fp8 ? e4m3_to_float(code + 1) : e2m1_to_float(code + 1);
      float value = (random.bits() % 4 == 0 ? low : (low + high) / 2) * scale;
      if (random.bits() % 3 == 0) value = std::nextafter(value, random.bits() % 2 ? 1e30f : 0.0f);
      x.push_back(random.bits() % 2 ? value : -value);
    }
  }
  return x;
}

}  // namespace deepinfer::ops
