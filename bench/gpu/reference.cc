#include "gpu/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "base/number_formats.h"

namespace deepinfer::bench {

using ops::WeightFormat;

std::vector<float> decoded_rows(Card& card, const ops::WeightSource& source, int64_t first, int64_t count) {
  const int64_t cols = source.cols, groups = cols / 32;
  std::vector<float> out(count * cols);
  if (source.format == WeightFormat::kBf16 || source.format == WeightFormat::kF32) {
    const int64_t width = source.format == WeightFormat::kF32 ? 4 : 2;
    const std::vector<std::byte> raw = card.download(source.data + first * cols * width, count * cols * width);
    for (int64_t i = 0; i < count * cols; ++i) {
      if (width == 4) {
        std::memcpy(&out[i], raw.data() + i * 4, 4);
      } else {
        BFloat16 value{};
        std::memcpy(&value.bits, raw.data() + i * 2, 2);
        out[i] = to_float(value);
      }
    }
    return out;
  }
  const bool is_e4m3 = source.format == WeightFormat::kF8Tile32;
  const int64_t row_bytes = is_e4m3 ? cols : cols / 2;
  const int64_t first_scale = is_e4m3 ? first / 32 : first, num_scales = is_e4m3 ? (count + 31) / 32 : count;
  const std::vector<std::byte> codes = card.download(source.data + first * row_bytes, count * row_bytes);
  const std::vector<std::byte> scales = card.download(source.scales + first_scale * groups, num_scales * groups);
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const float scale = e8m0_to_float(static_cast<uint8_t>(scales[(is_e4m3 ? r / 32 : r) * groups + c / 32]));
      const auto byte = static_cast<uint8_t>(codes[r * row_bytes + (is_e4m3 ? c : c / 2)]);
      out[r * cols + c] = scale * (is_e4m3 ? e4m3_to_float(byte) : e2m1_to_float(c % 2 == 0 ? byte & 15 : byte >> 4));
    }
  }
  return out;
}

std::vector<float> row_of(Card& card, ConstTensorView view, int64_t row) {
  std::vector<float> out(view.cols);
  const std::byte* from = view.data + row * view.stride * element_bytes(view.type);
  if (view.type == ElementType::kF32) return card.download(reinterpret_cast<const float*>(from), view.cols);
  const std::vector<uint16_t> bits = card.download(reinterpret_cast<const uint16_t*>(from), view.cols);
  for (int64_t i = 0; i < view.cols; ++i) out[i] = to_float(BFloat16{bits[i]});
  return out;
}

// A cached row as numbers.
std::vector<float> cached_row(Card& card, const ops::RowTables& tables, int64_t token, int64_t row) {
  const std::byte* const* blocks = card.download(tables.blocks + token, 1).front();
  const std::byte* block = card.download(blocks + (row >> tables.block_shift), 1).front();
  const int64_t bytes = ops::row_bytes(tables.type, tables.width);
  const int64_t at = tables.offset + (row & ((int64_t{1} << tables.block_shift) - 1)) * bytes;
  const std::vector<uint8_t> raw = card.download(reinterpret_cast<const uint8_t*>(block + at), bytes);
  const bool is_e4m3 = tables.type == ops::RowType::kE4m3Group32;
  const int64_t codes = is_e4m3 ? tables.width : tables.width / 2, group = ops::row_group(tables.type);
  std::vector<float> out(tables.width);
  for (int64_t i = 0; i < tables.width; ++i) {
    const uint8_t scale = raw[codes + i / group];
    const float value = is_e4m3 ? e4m3_to_float(raw[i]) : e2m1_to_float(i % 2 == 0 ? raw[i / 2] & 15 : raw[i / 2] >> 4);
    out[i] = value * (tables.type == ops::RowType::kE2m1Group16 ? e4m3_to_float(scale) : e8m0_to_float(scale));
  }
  return out;
}

double dot(const float* a, const float* b, int64_t count) {
  double lanes[8] = {};
  for (int64_t i = 0; i < count; i += 8) {
    for (int64_t lane = 0; lane < 8; ++lane) lanes[lane] += static_cast<double>(a[i + lane]) * b[i + lane];
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

void quantise(std::vector<float>& values) {
  for (size_t group = 0; group < values.size(); group += 32) {
    float largest = 1e-4f;
    for (size_t i = group; i < group + 32; ++i) largest = std::max(largest, std::fabs(values[i]));
    const float scale = power_of_two_at_least(largest / 448);
    for (size_t i = group; i < group + 32; ++i) values[i] = scale * e4m3_to_float(float_to_e4m3(values[i] / scale));
  }
}

std::string Check::text() const {
  const double error = std::sqrt(difference_ / std::max(size_, 1e-300));
  // Written so that NaN is wrong.
  return fmt::format("{} {:.1e}", error <= tolerance_ ? "ok" : "WRONG", error);
}

}  // namespace deepinfer::bench
