#include "cpu/random_weights.h"

#include <cmath>
#include <cstring>

#include "base/number_formats.h"

namespace deepinfer::bench {
namespace {

using ops::WeightFormat;

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

int64_t bits_per_value(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF8Tile32:
      return 8;
    case WeightFormat::kMxfp4:
      return 4;
    case WeightFormat::kBf16:
      return 16;
    case WeightFormat::kF32:
      break;
  }
  return 32;
}

// Eight bytes of random bits as valid codes of the format. For reals: exponents of 2^-8 to 2^-1.
uint64_t as_codes(WeightFormat format, uint64_t bits) {
  constexpr uint64_t kBytes = 0x0101010101010101u;
  switch (format) {
    case WeightFormat::kMxfp4:
      return bits;
    case WeightFormat::kF8Tile32: {
      const uint64_t is_nan = ((bits & 0x7F * kBytes) + kBytes) & 0x80 * kBytes;  // a byte's low bits are all ones
      return bits & ~(is_nan >> 7);
    }
    case WeightFormat::kBf16:
      return (bits & 0x83FF83FF83FF83FFu) | 0x3C003C003C003C00u;
    case WeightFormat::kF32:
      break;
  }
  return (bits & 0x83FFFFFF83FFFFFFu) | 0x3C0000003C000000u;
}

int64_t scale_rows(WeightFormat format, int64_t rows) {
  if (format == WeightFormat::kF8Tile32) return (rows + 31) / 32;
  return format == WeightFormat::kMxfp4 ? rows : 0;
}

}  // namespace

RandomMatrix::RandomMatrix(ThreadPool& pool, WeightFormat format, int64_t rows, int64_t cols, uint64_t seed,
                           int first_scale, int num_scales)
    : format_(format),
      rows_(rows),
      cols_(cols),
      data_(rows * cols * bits_per_value(format) / 8),
      scales_(scale_rows(format, rows) * cols / 32) {
  const int64_t row_bytes = cols * bits_per_value(format) / 8;
  pool.run(rows, [&](int64_t row, int) {
    for (int64_t at = row * row_bytes; at < (row + 1) * row_bytes; at += 8) {
      const uint64_t codes = as_codes(format, mix(seed * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(at)));
      std::memcpy(data_.data() + at, &codes, 8);
    }
  });
  for (size_t i = 0; i < scales_.size(); ++i)
    scales_[i] = static_cast<std::byte>(first_scale + static_cast<int>(mix(seed + i) % num_scales));
}

ops::WeightSource RandomMatrix::source() const {
  return {format_, rows_, cols_, data_.data(), scales_.empty() ? nullptr : scales_.data()};
}

ops::WeightSource RandomMatrix::slice(int64_t first_row) const {
  const std::byte* scales = scales_.empty() ? nullptr : scales_.data() + scale_rows(format_, first_row) * cols_ / 32;
  return {format_, 32, cols_, data_.data() + first_row * cols_ * bits_per_value(format_) / 8, scales};
}

std::vector<float> magnitudes(const ops::WeightSource& slice) {
  std::vector<float> values(slice.rows * slice.cols);
  for (int64_t i = 0; i < slice.rows * slice.cols; ++i) {
    const int64_t row = i / slice.cols;
    const int64_t group = i % slice.cols / 32;
    const auto byte = [&](int64_t at) { return static_cast<uint8_t>(slice.data[at]); };
    const auto scale = [&](int64_t scale_row) {
      return e8m0_to_float(static_cast<uint8_t>(slice.scales[scale_row * (slice.cols / 32) + group]));
    };
    switch (slice.format) {
      case WeightFormat::kF8Tile32:
        values[i] = e4m3_to_float(byte(i)) * scale(row / 32);
        break;
      case WeightFormat::kMxfp4:
        values[i] = e2m1_to_float(static_cast<uint8_t>(byte(i / 2) >> (i % 2 * 4))) * scale(row);
        break;
      case WeightFormat::kBf16:
        values[i] = to_float(BFloat16{static_cast<uint16_t>(byte(2 * i) | byte(2 * i + 1) << 8)});
        break;
      case WeightFormat::kF32:
        std::memcpy(&values[i], slice.data + 4 * i, 4);
        break;
    }
    values[i] = std::fabs(values[i]);
  }
  return values;
}

std::vector<float> random_bf16_values(int64_t count, uint64_t seed) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = static_cast<uint32_t>(mix(seed * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(i)));
    values[i] = to_float(BFloat16{static_cast<uint16_t>((bits & 0x81FF) | 0x3E00)});  // 2^-3 to 2
  }
  return values;
}

}  // namespace deepinfer::bench
