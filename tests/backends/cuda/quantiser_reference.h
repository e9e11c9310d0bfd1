// The quantisers of ops::FakeQuant and the packed rows of ops::RowType as plain loops over base/number_formats.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/number_formats.h"
#include "ops/elementwise.h"

namespace deepinfer::cuda_test {

struct Quantised {
  std::vector<uint8_t> codes;   // one a value
  std::vector<uint8_t> scales;  // one a group
  std::vector<float> values;
};

inline Quantised quantise_reference(ops::FakeQuant kind, const std::vector<float>& in) {
  const int64_t group = ops::quantiser_group(kind);
  Quantised result;
  for (size_t first = 0; first < in.size(); first += group) {
    float largest = 0;
    for (int64_t i = 0; i < group; ++i) largest = std::max(largest, std::fabs(in[first + i]));
    float scale = 0, limit = 6;
    switch (kind) {
      case ops::FakeQuant::kE4m3Group32:
        scale = power_of_two_at_least(std::max(largest, 1e-4f) * (1.0f / 448.0f));
        limit = 448;
        break;
      case ops::FakeQuant::kE2m1Group16:
        scale = e4m3_to_float(float_to_e4m3(std::max(largest, 6.0f / 512.0f) / 6.0f));
        break;
      case ops::FakeQuant::kE2m1Group32:
        scale = power_of_two_at_least(std::max(largest, 0x1.8p-124f) * (1.0f / 6.0f));
        break;
    }
    result.scales.push_back(kind == ops::FakeQuant::kE2m1Group16
                                ? float_to_e4m3(scale)
                                : static_cast<uint8_t>(std::bit_cast<uint32_t>(scale) >> 23));
    for (int64_t i = 0; i < group; ++i) {
      const float x = std::clamp(in[first + i] / scale, -limit, limit);
      const bool wide = kind == ops::FakeQuant::kE4m3Group32;
      result.codes.push_back(wide ? float_to_e4m3(x) : float_to_e2m1(x));
      result.values.push_back((wide ? e4m3_to_float(result.codes.back()) : e2m1_to_float(result.codes.back())) * scale);
    }
  }
  return result;
}

// The bytes of a row of one of the packed types, or of plain numbers.
inline std::vector<uint8_t> row_reference(ops::RowType type, const std::vector<float>& in) {
  std::vector<uint8_t> bytes;
  if (type == ops::RowType::kF32 || type == ops::RowType::kBf16) {
    for (float x : in) {
      const uint32_t bits = std::bit_cast<uint32_t>(x), half = to_bfloat16(x).bits;
      const bool wide = type == ops::RowType::kF32;
      for (int i = 0; i < (wide ? 4 : 2); ++i) bytes.push_back((wide ? bits : half) >> (8 * i) & 0xFF);
    }
    return bytes;
  }
  const ops::FakeQuant kind =
      type == ops::RowType::kE4m3Group32
          ? ops::FakeQuant::kE4m3Group32
          : (type == ops::RowType::kE2m1Group16 ? ops::FakeQuant::kE2m1Group16 : ops::FakeQuant::kE2m1Group32);
  const Quantised q = quantise_reference(kind, in);
  if (type == ops::RowType::kE4m3Group32) {
    bytes = q.codes;
  } else {
    for (size_t i = 0; i < q.codes.size(); i += 2) bytes.push_back(q.codes[i] | q.codes[i + 1] << 4);
  }
  bytes.insert(bytes.end(), q.scales.begin(), q.scales.end());
  return bytes;
}

}  // namespace deepinfer::cuda_test
