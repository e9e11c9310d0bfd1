#include "base/number_formats.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "golden_json.h"

namespace deepinfer {
namespace {

float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }

TEST(BFloat16, is_the_upper_half_of_a_float) {
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const float value = to_float(BFloat16{static_cast<uint16_t>(bits)});
    EXPECT_EQ(std::bit_cast<uint32_t>(value), bits << 16);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(round_to_bfloat16(value)));
    } else {
      EXPECT_EQ(to_bfloat16(value).bits, bits);
    }
  }
}

TEST(BFloat16, rounds_to_the_nearest_with_ties_to_even) {
  for (uint32_t upper = 0; upper < 0x7F7F; upper += 13) {
    const float low = from_bits(upper << 16), high = from_bits((upper + 1) << 16);
    EXPECT_EQ(round_to_bfloat16(from_bits(upper << 16 | 0x7FFF)), low);
    EXPECT_EQ(round_to_bfloat16(from_bits(upper << 16 | 0x8000)), upper % 2 ? high : low) << "a tie above " << low;
    EXPECT_EQ(round_to_bfloat16(from_bits(upper << 16 | 0x8001)), high);
    EXPECT_EQ(round_to_bfloat16(-from_bits(upper << 16 | 0x8001)), -high);
  }
  EXPECT_EQ(round_to_bfloat16(from_bits(0x7F7FFFFF)), INFINITY)
      << "the largest float is nearer to the next power of two";
  EXPECT_EQ(round_to_bfloat16(-INFINITY), -INFINITY);
  EXPECT_TRUE(std::isnan(round_to_bfloat16(from_bits(0x7F800001)))) << "a NaN whose upper half alone is infinity";
}

TEST(E4m3, codes_round_trip_and_have_the_golden_values) {
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_to_float(static_cast<uint8_t>(code));
    EXPECT_EQ(std::isnan(value), (code & 0x7F) == 0x7F) << code;
    if (std::isnan(value)) continue;
    EXPECT_EQ(float_to_e4m3(value), code);
  }
  for (const GoldenCase& golden : read_golden_cases("weight_formats")) {
    if (golden.name() != "e4m3_codes") continue;
    const std::vector<int32_t> codes = golden.integers("codes");
    const std::vector<float> values = golden.floats("values");
    ASSERT_EQ(codes.size(), 254u);
    for (size_t i = 0; i < codes.size(); ++i)
      EXPECT_EQ(e4m3_to_float(static_cast<uint8_t>(codes[i])), values[i]) << codes[i];
  }
}

TEST(E4m3, gives_the_codes_of_the_model_s_description) {
  const std::pair<float, int> vectors[] = {
      {448, 0x7E},      {1000, 0x7E},     {1.0625f, 0x38},     {1.1875f, 0x3A},     {17, 0x58},  {19, 0x5A},
      {0x1p-9f, 1},     {0x1p-10f, 0x00}, {-0.0f, 0x80},       {0.0f, 0},           {464, 0x7E}, {-1e30f, 0xFE},
      {INFINITY, 0x7E}, {-448, 0xFE},     {1.5f * 0x1p-9f, 2}, {2.5f * 0x1p-9f, 2}, {1e-40f, 0}, {-1e-40f, 0x80}};
  for (const auto& [value, code] : vectors) EXPECT_EQ(float_to_e4m3(value), code) << value;
}

TEST(E4m3, rounds_to_the_nearest_with_ties_to_the_even_code) {
  for (int code = 0; code < 0x7E; ++code) {
    const float low = e4m3_to_float(static_cast<uint8_t>(code)), high = e4m3_to_float(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;
    const int even = code % 2 ? code + 1 : code;
    for (const int sign : {0, 0x80}) {
      const float s = sign ? -1.0f : 1.0f;
      EXPECT_EQ(float_to_e4m3(s * middle), even | sign) << "between " << low << " and " << high;
      EXPECT_EQ(float_to_e4m3(s * std::nextafter(middle, 0.0f)), code | sign);
      EXPECT_EQ(float_to_e4m3(s * std::nextafter(middle, 1e9f)), (code + 1) | sign);
    }
  }
}

TEST(E8m0, is_a_power_of_two_a_code) {
  for (int code = 0; code < 255; ++code)
    EXPECT_EQ(e8m0_to_float(static_cast<uint8_t>(code)), std::ldexp(1.0f, code - 127)) << code;
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
}

TEST(E2m1, rounds_to_the_nearest_with_ties_to_the_even_code) {
  const float values[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (int code = 0; code < 8; ++code) {
    EXPECT_EQ(e2m1_to_float(static_cast<uint8_t>(code)), values[code]);
    EXPECT_EQ(e2m1_to_float(static_cast<uint8_t>(code + 8)), -values[code]);
    EXPECT_EQ(float_to_e2m1(values[code]), code);
    if (code == 7) break;
    const float middle = (values[code] + values[code + 1]) / 2;
    for (const int sign : {0, 8}) {
      const float s = sign ? -1.0f : 1.0f;
      EXPECT_EQ(float_to_e2m1(s * middle), (code % 2 ? code + 1 : code) | sign) << "a tie at " << middle;
      EXPECT_EQ(float_to_e2m1(s * std::nextafter(middle, 0.0f)), code | sign);
      EXPECT_EQ(float_to_e2m1(s * std::nextafter(middle, 9.0f)), (code + 1) | sign);
    }
  }
  EXPECT_EQ(float_to_e2m1(7.0f), 7);
  EXPECT_EQ(float_to_e2m1(-INFINITY), 15);
  EXPECT_EQ(float_to_e2m1(-0.0f), 8);
  EXPECT_EQ(float_to_e2m1(1e-45f), 0);
}

TEST(ScaledFormats, give_the_golden_values_of_whole_matrices) {
  int checked = 0;
  for (const GoldenCase& golden : read_golden_cases("weight_formats")) {
    if (golden.name() != "fp8_row" && golden.name() != "fp4") continue;
    const std::vector<int32_t> codes = golden.integers("codes"), scales = golden.integers("scale");
    const std::vector<float> values = golden.floats("values");
    const bool packed = golden.name() == "fp4";  // two codes a byte, the even column in the low nibble
    ASSERT_EQ(codes.size() * (packed ? 2 : 1), values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const auto byte = static_cast<uint8_t>(codes[packed ? i / 2 : i]);
      const float value = packed ? e2m1_to_float(i % 2 ? byte >> 4 : byte & 15) : e4m3_to_float(byte);
      ASSERT_EQ(value * e8m0_to_float(static_cast<uint8_t>(scales[i / 32])), values[i])
          << golden.name() << ", value " << i;
    }
    ++checked;
  }
  EXPECT_EQ(checked, 2);
}

TEST(PowerOfTwoAtLeast, is_exact_at_powers_of_two_and_beside_them) {
  for (int exponent = -126; exponent < 127; ++exponent) {
    const float power = std::ldexp(1.0f, exponent);
    EXPECT_EQ(power_of_two_at_least(power), power);
    EXPECT_EQ(power_of_two_at_least(std::nextafter(power, INFINITY)), 2 * power);
    if (exponent == -126) continue;  // below lie subnormal numbers
    EXPECT_EQ(power_of_two_at_least(std::nextafter(power, 0.0f)), power);
  }
}

}  // namespace
}  // namespace deepinfer
