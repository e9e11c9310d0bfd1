// Every set of linear kernels against the reference, on random weights of every format: bit for bit where the set
// promises that, within a bound derived from the number of columns where it multiplies BF16 pairs.
#include "backends/cpu/linear.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "base/number_formats.h"

namespace deepinfer::cpu {
namespace {

using ops::LinearTask;
using ops::PackedWeight;
using ops::WeightFormat;
using ops::WeightSource;

constexpr WeightFormat kFormats[] = {WeightFormat::kF8Tile32, WeightFormat::kMxfp4, WeightFormat::kBf16,
                                     WeightFormat::kF32};
constexpr const char* kFormatNames[] = {"Fp8", "Mxfp4", "Bf16", "F32"};

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  uint32_t bits() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 32) ^ static_cast<uint32_t>(state_ >> 11);
  }
  int between(int low, int high) { return low + static_cast<int>(bits() % static_cast<uint32_t>(high - low + 1)); }
  // Either sign, any mantissa, magnitude from 2^low to 2^(high + 1).
  float real(int low, int high) {
    return std::ldexp(1.0f + std::ldexp(static_cast<float>(bits() >> 9), -23), between(low, high)) *
           (bits() & 1 ? 1 : -1);
  }

 private:
  uint64_t state_;
};

// A matrix in the checkpoint's form, off by one byte so that nothing is aligned.
struct Matrix {
  Matrix(WeightFormat format, int64_t rows, int64_t cols, int low_scale, int high_scale, uint64_t seed) {
    Random random(seed);
    data.push_back(0);
    for (int64_t i = 0; i < rows * cols; ++i) {
      switch (format) {
        case WeightFormat::kF8Tile32: {
          const uint8_t code = static_cast<uint8_t>(random.bits());
          data.push_back((code & 0x7F) == 0x7F ? code ^ 1 : code);
          break;
        }
        case WeightFormat::kMxfp4:
          if (i % 2 == 0) data.push_back(static_cast<uint8_t>(random.bits()));
          break;
        case WeightFormat::kBf16:
          append(to_bfloat16(random.real(-8, 4)).bits);
          break;
        case WeightFormat::kF32:
          append(random.real(-8, 4));
          break;
      }
    }
    const int64_t scale_rows = format == WeightFormat::kF8Tile32 ? (rows + 31) / 32
                               : format == WeightFormat::kMxfp4  ? rows
                                                                 : 0;
    scales.push_back(0);
    for (int64_t i = 0; i < scale_rows * cols / 32; ++i)
      scales.push_back(static_cast<uint8_t>(random.between(low_scale, high_scale)));
    source = {format, rows, cols, reinterpret_cast<const std::byte*>(data.data() + 1),
              scale_rows > 0 ? reinterpret_cast<const std::byte*>(scales.data() + 1) : nullptr};
  }
  // The weight of a row and a column without its scale, and the scale of a group of 32 columns.
  float code(int64_t row, int64_t col) const {
    const auto* bytes = data.data() + 1;
    const int64_t at = row * source.cols + col;
    switch (source.format) {
      case WeightFormat::kF8Tile32:
        return e4m3_to_float(bytes[at]);
      case WeightFormat::kMxfp4:
        return e2m1_to_float(bytes[at / 2] >> (at % 2 * 4) & 15);
      case WeightFormat::kBf16:
        return std::bit_cast<float>(static_cast<uint32_t>(bytes[at * 2] | bytes[at * 2 + 1] << 8) << 16);
      case WeightFormat::kF32:
        break;
    }
    float value;
    std::memcpy(&value, bytes + at * 4, sizeof(value));
    return value;
  }
  float scale(int64_t row, int64_t group) const {
    const int64_t scale_row = source.format == WeightFormat::kF8Tile32 ? row / 32 : row;
    return e8m0_to_float(scales[1 + scale_row * source.cols / 32 + group]);
  }

  template <typename T>
  void append(T value) {
    const size_t at = data.size();
    data.resize(at + sizeof(T));
    std::memcpy(data.data() + at, &value, sizeof(T));
  }

  std::vector<uint8_t> data;
  std::vector<uint8_t> scales;
  WeightSource source;
};

std::vector<float> random_input(int64_t count, uint64_t seed) {
  Random random(seed);
  std::vector<float> values(count);
  for (float& v : values) v = random.bits() % 16 == 0 ? 0.0f : random.real(-6, 3);
  return values;
}

std::vector<float> rounded(std::vector<float> values) {
  for (float& v : values) v = round_to_bfloat16(v);
  return values;
}

std::vector<float> run(const LinearKernels& kernels, ThreadPool& pool, const PackedWeight& weight,
                       const std::vector<float>& in, bool input_is_bf16, bool round_output = false) {
  const int64_t num_tokens = static_cast<int64_t>(in.size()) / weight.cols;
  std::vector<float> out(num_tokens * weight.rows, std::nanf(""));
  LinearTask task = {dense(out.data(), num_tokens, weight.rows), dense(in.data(), num_tokens, weight.cols), &weight,
                     input_is_bf16, round_output};
  kernels.run(pool, {&task, 1});
  return out;
}

// The index of the first value that differs, or -1. Two NaNs are equal.
int64_t first_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) ? !std::isnan(b[i]) : std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) {
      return static_cast<int64_t>(i);
    }
  }
  return -1;
}

#define EXPECT_SAME_BITS(a, b) EXPECT_EQ(first_difference(a, b), -1)

// For each output, what two orders of summation may differ by. Either makes at most 3 roundings a pair inside a group
// and one for each group, each of at most 2^-24 of a partial sum that the sum of magnitudes bounds.
std::vector<double> bounds(const Matrix& matrix, const std::vector<float>& in) {
  const WeightSource& w = matrix.source;
  ThreadPool pool(1);
  WeightSource source = w;
  const LinearKernels& reference = reference_linear();
  const PackedWeight packed = reference.pack(pool, source);
  // |w| column by column, from the reference applied to unit vectors.
  std::vector<float> unit(w.cols * w.cols, 0.0f);
  for (int64_t k = 0; k < w.cols; ++k) unit[k * w.cols + k] = 1.0f;
  const std::vector<float> columns = run(reference, pool, packed, unit, false);
  const int64_t num_tokens = static_cast<int64_t>(in.size()) / w.cols;
  std::vector<double> result(num_tokens * w.rows, 0.0);
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t k = 0; k < w.cols; ++k) {
      for (int64_t o = 0; o < w.rows; ++o) {
        result[t * w.rows + o] += std::fabs(static_cast<double>(columns[k * w.rows + o]) * in[t * w.cols + k]);
      }
    }
  }
  const double roundings = 2.0 * (3 * 16 + static_cast<double>(w.cols) / 32);
  for (double& r : result) r *= roundings * 0x1p-24;
  return result;
}

class LinearKernelsTest : public testing::TestWithParam<std::tuple<int, int>> {
 protected:
  void SetUp() override {
    if (!kernels().supported()) GTEST_SKIP() << "this processor lacks the instructions of " << kernels().name;
  }
  const LinearKernels& kernels() const { return *all_linear_kernels()[std::get<0>(GetParam())]; }
  WeightFormat format() const { return kFormats[std::get<1>(GetParam())]; }
  bool has_pair_kernels() const {
    return &kernels() != &reference_linear() && &kernels() != &avx2_linear() && &kernels() != &avx512_linear() &&
           format() != WeightFormat::kF32;
  }

  void expect_reference(int64_t rows, int64_t cols, const std::vector<int64_t>& tokens, int low_scale, int high_scale) {
    SCOPED_TRACE(testing::Message() << rows << " x " << cols << ", scales " << low_scale << " to " << high_scale);
    const Matrix matrix(format(), rows, cols, low_scale, high_scale, rows * 1000 + cols);
    const PackedWeight expected_weight = reference_linear().pack(pool_, matrix.source);
    const PackedWeight weight = kernels().pack(pool_, matrix.source);
    for (const int64_t num_tokens : tokens) {
      SCOPED_TRACE(testing::Message() << num_tokens << " tokens");
      const std::vector<float> in = random_input(num_tokens * cols, num_tokens);
      EXPECT_SAME_BITS(run(kernels(), pool_, weight, in, false),
                       run(reference_linear(), pool_, expected_weight, in, false));
    }
  }

  ThreadPool pool_{2};
};

TEST_P(LinearKernelsTest, fp32_inputs_give_the_bits_of_the_reference_at_every_number_of_tokens) {
  expect_reference(70, 96, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 17, 33, 64, 65, 97, 200}, 119, 131);
}

TEST_P(LinearKernelsTest, fp32_inputs_give_the_bits_of_the_reference_at_every_number_of_rows) {
  for (int64_t rows = 1; rows <= 70; ++rows) expect_reference(rows, 64, {1, 2, 3, 4, 7, 13}, 119, 131);
  for (const int64_t rows : {127, 128, 129, 272, 300}) expect_reference(rows, 64, {1, 4, 5, 8, 13}, 119, 131);
}

TEST_P(LinearKernelsTest, fp32_inputs_give_the_bits_of_the_reference_at_many_widths) {
  for (const int64_t cols : {32, 64, 96, 128, 160, 512, 544, 1280})
    expect_reference(40, cols, {1, 2, 4, 6, 17}, 119, 131);
}

TEST_P(LinearKernelsTest, extreme_scales_give_the_bits_of_the_reference) {
  for (const auto& [low, high] : {std::pair{0, 0}, {0, 3}, {1, 20}, {100, 150}, {240, 254}, {254, 254}, {0, 254}}) {
    expect_reference(48, 128, {1, 3, 9}, low, high);
  }
}

TEST_P(LinearKernelsTest, each_code_alone_gives_its_value) {
  if (format() != WeightFormat::kF8Tile32 && format() != WeightFormat::kMxfp4) {
    GTEST_SKIP() << "only the table formats have few enough codes to try each";
  }
  const bool is_fp8 = format() == WeightFormat::kF8Tile32;
  const int num_codes = is_fp8 ? 256 : 16;
  std::vector<uint8_t> data(is_fp8 ? num_codes * 32 : num_codes * 16);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(is_fp8 ? i / 32 : i / 16 * 17);
  const std::vector<uint8_t> scales(num_codes, 127);
  const WeightSource source = {format(), num_codes, 32, reinterpret_cast<const std::byte*>(data.data()),
                               reinterpret_cast<const std::byte*>(scales.data())};
  const PackedWeight weight = kernels().pack(pool_, source);
  for (const bool input_is_bf16 : {false, true}) {
    std::vector<float> in(32 * 32, 0.0f);
    for (int k = 0; k < 32; ++k) in[k * 32 + k] = 1.0f;
    const std::vector<float> out = run(kernels(), pool_, weight, in, input_is_bf16);
    for (int k = 0; k < 32; ++k) {
      for (int code = 0; code < num_codes; ++code) {
        if (is_fp8 && (code & 127) == 127) continue;  // NaN, refused at load
        const float value =
            is_fp8 ? e4m3_to_float(static_cast<uint8_t>(code)) : e2m1_to_float(static_cast<uint8_t>(code));
        EXPECT_EQ(out[k * num_codes + code], value) << "code " << code << " in column " << k;
      }
    }
  }
}

TEST_P(LinearKernelsTest, bf16_inputs_give_the_reference_within_the_bound_of_its_columns) {
  for (const int64_t cols : {32, 96, 512}) {
    SCOPED_TRACE(testing::Message() << cols << " columns");
    const Matrix matrix(format(), 70, cols, 119, 131, cols);
    const std::vector<float> in = rounded(random_input(7 * cols, 3));
    const std::vector<float> expected =
        run(reference_linear(), pool_, reference_linear().pack(pool_, matrix.source), in, true);
    const std::vector<float> out = run(kernels(), pool_, kernels().pack(pool_, matrix.source), in, true);
    if (!has_pair_kernels()) {
      EXPECT_SAME_BITS(out, expected);
      continue;
    }
    const std::vector<double> bound = bounds(matrix, in);
    for (size_t i = 0; i < out.size(); ++i)
      ASSERT_LE(std::fabs(static_cast<double>(out[i]) - expected[i]), bound[i]) << "at " << i;
  }
}

// What linear.h says of `amx`, step by step. Inputs and weights of the test are no subnormals; sums may be.
std::vector<float> amx_by_definition(const Matrix& matrix, const std::vector<float>& in) {
  const WeightSource& w = matrix.source;
  const auto flushed = [](float v) { return std::fabs(v) < 0x1p-126f ? std::copysign(0.0f, v) : v; };
  const int64_t num_tokens = static_cast<int64_t>(in.size()) / w.cols;
  std::vector<float> out(num_tokens * w.rows);
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t o = 0; o < w.rows; ++o) {
      float total = 0.0f;
      for (int64_t group = 0; group < w.cols; group += 32) {
        float scale = w.scales == nullptr ? 1.0f : matrix.scale(o, group / 32);
        if (w.format == WeightFormat::kF8Tile32) scale = std::clamp(scale, 0x1p-117f, 0x1p119f);
        if (w.format == WeightFormat::kMxfp4) scale = std::clamp(scale, 0x1p-125f, 0x1p125f);
        float sums[2] = {0.0f, 0.0f};
        for (int64_t k = group; k < group + 32; ++k)
          sums[k % 2] = flushed(std::fma(matrix.code(o, k) * scale, in[t * w.cols + k], sums[k % 2]));
        total = flushed(total + flushed(sums[0] + sums[1]));
      }
      out[t * w.rows + o] = total;
    }
  }
  return out;
}

TEST_P(LinearKernelsTest, amx_with_bf16_inputs_gives_the_bits_of_its_definition) {
  if (&kernels() != &amx_linear()) GTEST_SKIP() << "other sets have definitions of their own";
  if (!has_pair_kernels()) GTEST_SKIP() << "weights in fp32 run as in avx512";
  for (const auto& [low_exponent, scales] : {std::pair{-6, std::pair{119, 131}}, {-118, {0, 254}}}) {
    SCOPED_TRACE(testing::Message() << "inputs from 2^" << low_exponent);
    const Matrix matrix(format(), 150, 160, scales.first, scales.second, 11);
    const PackedWeight weight = kernels().pack(pool_, matrix.source);
    for (const int64_t num_tokens : {1, 4, 16, 17, 40, 101}) {
      Random random(num_tokens);
      std::vector<float> in(num_tokens * 160);
      for (float& v : in) v = random.real(low_exponent, low_exponent + 9);
      in = rounded(in);
      EXPECT_SAME_BITS(run(kernels(), pool_, weight, in, true), amx_by_definition(matrix, in))
          << num_tokens << " tokens";
    }
  }
}

TEST_P(LinearKernelsTest, a_row_has_the_same_bits_alone_and_in_any_batch) {
  constexpr int64_t kRows = 150, kCols = 160;
  const Matrix matrix(format(), kRows, kCols, 119, 131, 5);
  const PackedWeight weight = kernels().pack(pool_, matrix.source);
  for (const bool input_is_bf16 : {false, true}) {
    const std::vector<float> all = rounded(random_input(101 * kCols, 6));
    std::vector<float> alone;
    for (int64_t t = 0; t < 101; ++t) {
      const std::vector<float> in(all.begin() + t * kCols, all.begin() + (t + 1) * kCols);
      const std::vector<float> out = run(kernels(), pool_, weight, in, input_is_bf16);
      alone.insert(alone.end(), out.begin(), out.end());
    }
    for (const int64_t num_tokens : {2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 16, 17, 33, 64, 65, 96, 97, 101}) {
      const std::vector<float> in(all.begin(), all.begin() + num_tokens * kCols);
      const std::vector<float> expected(alone.begin(), alone.begin() + num_tokens * kRows);
      EXPECT_SAME_BITS(run(kernels(), pool_, weight, in, input_is_bf16), expected) << num_tokens << " tokens";
    }
  }
}

TEST_P(LinearKernelsTest, many_tasks_in_strided_views_give_the_bits_of_each_alone_with_any_number_of_threads) {
  // Shapes of very different sizes, so that units of several tasks lie in one region; tasks 0 and 1 share an input.
  const std::vector<std::tuple<int64_t, int64_t, int64_t>> shapes = {{600, 320, 5},  {40, 320, 5}, {1, 32, 1},
                                                                     {513, 64, 130}, {70, 96, 0},  {33, 512, 2}};
  std::vector<Matrix> matrices;
  for (const auto& [rows, cols, tokens] : shapes) matrices.emplace_back(format(), rows, cols, 119, 131, rows + cols);
  for (const bool input_is_bf16 : {false, true}) {
    for (const int num_threads : {1, 2, 3, 5}) {
      ThreadPool pool(num_threads);
      std::vector<PackedWeight> weights;
      std::vector<std::vector<float>> ins, outs;
      for (size_t i = 0; i < shapes.size(); ++i) {
        const auto& [rows, cols, tokens] = shapes[i];
        weights.push_back(kernels().pack(pool, matrices[i].source));
        ins.push_back(rounded(random_input(tokens * (cols + 7), cols)));
        outs.emplace_back(tokens * (rows + 5), -1.0f);
      }
      std::vector<LinearTask> tasks;
      for (size_t i = 0; i < shapes.size(); ++i) {
        const auto& [rows, cols, tokens] = shapes[i];
        const MatrixView<float> out = {outs[i].data() + 2, tokens, rows, rows + 5};
        const MatrixView<float> in = {ins[i == 1 ? 0 : i].data() + 3, tokens, cols, cols + 7};
        tasks.push_back({out, in, &weights[i], input_is_bf16, i % 2 == 1});
      }
      kernels().run(pool, tasks);
      for (size_t i = 0; i < shapes.size(); ++i) {
        SCOPED_TRACE(testing::Message() << "task " << i << ", " << num_threads << " threads");
        const auto& [rows, cols, tokens] = shapes[i];
        std::vector<float> in, out;
        for (int64_t t = 0; t < tokens; ++t) {
          const float* in_row = tasks[i].in.f32().row(t);
          const float* out_row = tasks[i].out.f32().row(t);
          in.insert(in.end(), in_row, in_row + cols);
          out.insert(out.end(), out_row, out_row + rows);
          EXPECT_EQ(outs[i][t * (rows + 5) + 1], -1.0f) << "written before the row";
          EXPECT_EQ(outs[i][t * (rows + 5) + rows + 2], -1.0f) << "written behind the row";
        }
        EXPECT_SAME_BITS(out, run(kernels(), pool_, weights[i], in, input_is_bf16, i % 2 == 1));
      }
    }
  }
}

TEST_P(LinearKernelsTest, outputs_round_to_the_nearest_bf16) {
  const Matrix matrix(format(), 50, 128, 119, 131, 9);
  const PackedWeight weight = kernels().pack(pool_, matrix.source);
  for (const int64_t num_tokens : {1, 20}) {
    const std::vector<float> in = rounded(random_input(num_tokens * 128, 10));
    for (const bool input_is_bf16 : {false, true}) {
      EXPECT_SAME_BITS(run(kernels(), pool_, weight, in, input_is_bf16, true),
                       rounded(run(kernels(), pool_, weight, in, input_is_bf16)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LinearKernelsTest, testing::Combine(testing::Range(0, 5), testing::Range(0, 4)),
                         [](const testing::TestParamInfo<std::tuple<int, int>>& parameters) {
                           return std::string(all_linear_kernels()[std::get<0>(parameters.param)]->name) + "_" +
                                  kFormatNames[std::get<1>(parameters.param)];
                         });

}  // namespace
}  // namespace deepinfer::cpu
