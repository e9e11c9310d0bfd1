#include "ops/linear.h"

#include <array>
#include <bit>
#include <cmath>

#include "backends/cuda/kernels.h"
#include "rig.h"

namespace deepinfer::cuda_test {
namespace {

using ops::LinearTask;
using ops::PackedWeight;
using ops::WeightFormat;
using ops::WeightSource;

constexpr WeightFormat kTiled[] = {WeightFormat::kF8Tile32, WeightFormat::kMxfp4, WeightFormat::kBf16};
using cuda_test::name_of;
const char* name_of(WeightFormat format) {
  constexpr std::array<const char*, 4> kNames = {"f8", "fp4", "bf16", "f32"};
  return kNames[static_cast<int>(format)];
}

// A matrix as in a checkpoint.
struct Matrix {
  WeightSource source;
  std::vector<std::byte> data, scales;

  double value(int64_t row, int64_t col, double* scale) const {
    const int64_t at = row * source.cols + col;
    *scale = 1;
    switch (source.format) {
      case WeightFormat::kF8Tile32:
        *scale = e8m0_to_float(byte(scales, row / 32 * (source.cols / 32) + col / 32));
        return e4m3_to_float(byte(data, at));
      case WeightFormat::kMxfp4:
        *scale = e8m0_to_float(byte(scales, row * (source.cols / 32) + col / 32));
        return e2m1_to_float(byte(data, at / 2) >> (at % 2 * 4) & 15);
      case WeightFormat::kBf16: {
        BFloat16 x;
        std::memcpy(&x, &data[at * 2], 2);
        return to_float(x);
      }
      default: {
        float x;
        std::memcpy(&x, &data[at * 4], 4);
        return x;
      }
    }
  }
  static uint8_t byte(const std::vector<std::byte>& bytes, int64_t at) { return static_cast<uint8_t>(bytes[at]); }
};

class LinearTest : public CudaTest {
 protected:
  // Every code that is a number; scales' bytes from `low` to `high`.
  Matrix matrix(WeightFormat format, int64_t rows, int64_t cols, int low = 118, int high = 124) {
    Matrix m;
    m.source.format = format, m.source.rows = rows, m.source.cols = cols;
    const int64_t per_value = format == WeightFormat::kF32 ? 4 : format == WeightFormat::kBf16 ? 2 : 1;
    m.data.resize(format == WeightFormat::kMxfp4 ? rows * cols / 2 : rows * cols * per_value);
    if (format == WeightFormat::kF8Tile32 || format == WeightFormat::kMxfp4) {
      for (std::byte& b : m.data) {
        uint8_t code = static_cast<uint8_t>(random()());
        if (format == WeightFormat::kF8Tile32 && (code & 0x7F) == 0x7F) code ^= 1;
        b = std::byte{code};
      }
      m.scales.resize(format == WeightFormat::kMxfp4 ? rows * cols / 32 : (rows + 31) / 32 * (cols / 32));
      for (std::byte& b : m.scales) b = static_cast<std::byte>(low + random()() % (high - low + 1));
    } else {
      std::normal_distribution<float> normal;
      for (int64_t i = 0; i < rows * cols; ++i) {
        const float value = normal(random()) * 0.05f;
        if (format == WeightFormat::kF32) {
          std::memcpy(&m.data[i * 4], &value, 4);
        } else {
          const BFloat16 bits = to_bfloat16(value);
          std::memcpy(&m.data[i * 2], &bits, 2);
        }
      }
    }
    m.source.data = m.data.data();
    m.source.scales = m.scales.empty() ? nullptr : m.scales.data();
    return m;
  }

  PackedWeight pack(const Matrix& m) { return cuda::pack_weight(stream(), m.source); }

  LinearTask task(const Tensor& out, const Tensor& in, const PackedWeight& weight) {
    LinearTask t;
    t.out = out.view(), t.in = in.view(), t.weight = &weight;
    t.input_is_bf16 = t.in.type == ElementType::kBf16;
    t.round_output_to_bf16 = t.out.type == ElementType::kBf16;
    return t;
  }
  void run(const LinearTask& t) {
    cuda::linear(stream(), {&t, 1});
    ASSERT_TRUE(stream().synchronize().ok());
  }
  // The product of packed weights and BF16 tokens.
  Floats product(const PackedWeight& weight, const Floats& x, int64_t tokens, ElementType out_type) {
    const Tensor in = tensor(ElementType::kBf16, tokens, weight.cols, x);
    const Tensor out = poisoned(out_type, tokens, weight.rows);
    run(task(out, in, weight));
    return out.values();
  }
};

// An error within what fp32 sums of so many products can have. The tensor cores align the 16 products of a step to the
// largest and drop what falls below its 24 bits or so, so an error grows like a few units in the last place of the sum
// of magnitudes, and with the number of steps; BF16 outputs add half a unit of theirs.
constexpr double kStep = 0x1p-20;
void expect_product(const Matrix& m, const Floats& x, const Floats& got, int64_t tokens, bool rounded,
                    const std::string& what) {
  const int64_t rows = m.source.rows, cols = m.source.cols;
  const int64_t stride = std::max<int64_t>(1, rows * tokens * cols / 30'000'000) | 1;  // a sample of large products
  double worst = 0;
  int64_t wrong = 0;
  for (int64_t i = 0; i < rows * tokens; i += stride) {
    const int64_t token = i / rows, row = i % rows;
    double want = 0, magnitude = 0;
    for (int64_t k = 0; k < cols; ++k) {
      double scale;
      const double product = m.value(row, k, &scale) * x[token * cols + k] * scale;
      want += product, magnitude += std::fabs(product);
    }
    const double bound = kStep * magnitude * (1 + cols / 256.0) + (rounded ? std::fabs(want) * 0x1p-8 : 0) + 1e-37;
    const double error = std::fabs(got[i] - want);
    if (error <= bound) {
      worst = std::max(worst, error / bound);
      continue;
    }
    if (wrong++ == 0) {
      ADD_FAILURE() << what << ": token " << token << " output " << row << ": got " << got[i] << ", expected " << want
                    << " within " << bound;
    }
  }
  EXPECT_EQ(wrong, 0) << what;
}

TEST_F(LinearTest, ProductsOfEveryFormatAreRightForEveryNumberOfTokens) {
  constexpr int64_t kShapes[][2] = {{16, 32}, {48, 64}, {64, 96}, {96, 160}, {144, 128}, {336, 1248}};
  for (WeightFormat format : kTiled) {
    for (const auto& [rows, cols] : kShapes) {
      const Matrix m = matrix(format, rows, cols);
      const PackedWeight weight = pack(m);
      for (int64_t tokens : {1, 2, 3, 7, 8, 9, 16, 17, 33, 63, 64, 65, 130, 300}) {
        const Floats x = random_values(tokens * cols, 1, ElementType::kBf16);
        const std::string what = std::string(name_of(format)) + " [" + std::to_string(rows) + ", " +
                                 std::to_string(cols) + "], tokens " + std::to_string(tokens);
        expect_product(m, x, product(weight, x, tokens, ElementType::kF32), tokens, false, what);
        if (tokens % 3 == 0) {
          expect_product(m, x, product(weight, x, tokens, ElementType::kBf16), tokens, true, what + " rounded");
        }
      }
    }
  }
}

TEST_F(LinearTest, ProductsOfReleasedShapesAreRight) {
  struct Shape {
    WeightFormat format;
    int64_t rows, cols;
  };
  constexpr Shape kShapes[] = {{WeightFormat::kF8Tile32, 1280, 5120}, {WeightFormat::kF8Tile32, 5120, 8192},
                               {WeightFormat::kF8Tile32, 4096, 1280}, {WeightFormat::kBf16, 384, 5120},
                               {WeightFormat::kBf16, 32, 5120},       {WeightFormat::kMxfp4, 2304, 5120}};
  for (const Shape& shape : kShapes) {
    const Matrix m = matrix(shape.format, shape.rows, shape.cols);
    const PackedWeight weight = pack(m);
    for (int64_t tokens : {1, 64, 257, 1000}) {
      const Floats x = random_values(tokens * shape.cols, 1, ElementType::kBf16);
      expect_product(m, x, product(weight, x, tokens, ElementType::kF32), tokens, false,
                     std::string(name_of(shape.format)) + " " + std::to_string(shape.rows) + "x" +
                         std::to_string(shape.cols) + ", tokens " + std::to_string(tokens));
    }
  }
}

// The promise: a token's outputs are the same bits alone, in any batch, at any place in it.
TEST_F(LinearTest, ATokensOutputsDoNotDependOnItsBatch) {
  struct Shape {
    WeightFormat format;
    int64_t rows, cols;
  };
  // Sums of one, of few and of many parts; few outputs and more than two blocks a multiprocessor.
  constexpr Shape kShapes[] = {{WeightFormat::kF8Tile32, 1280, 5120}, {WeightFormat::kF8Tile32, 5120, 2304},
                               {WeightFormat::kF8Tile32, 1024, 4096}, {WeightFormat::kF8Tile32, 17024, 640},
                               {WeightFormat::kF8Tile32, 2560, 3072}, {WeightFormat::kMxfp4, 576, 2304},
                               {WeightFormat::kMxfp4, 17024, 160},    {WeightFormat::kF8Tile32, 5120, 8192},
                               {WeightFormat::kBf16, 384, 5120},      {WeightFormat::kBf16, 16, 96}};
  constexpr int64_t kTokens = 5000;
  for (const Shape& shape : kShapes) {
    const Matrix m = matrix(shape.format, shape.rows, shape.cols);
    const PackedWeight weight = pack(m);
    const Tensor in =
        tensor(ElementType::kBf16, kTokens, shape.cols, random_values(kTokens * shape.cols, 1, ElementType::kBf16));
    const auto outputs = [&](int64_t begin, int64_t end) {
      const Tensor out = poisoned(ElementType::kF32, end - begin, shape.rows);
      LinearTask t = task(out, in, weight);
      t.in = in.view().row_range(begin, end);
      run(t);
      return out.values();
    };
    const Floats all = outputs(0, kTokens);
    const auto expect_same = [&](int64_t begin, int64_t n) {
      const Floats part = outputs(begin, begin + n);
      const Floats want(all.begin() + begin * shape.rows, all.begin() + (begin + n) * shape.rows);
      expect_same_bits(part, want,
                       std::string(name_of(shape.format)) + " " + std::to_string(shape.rows) + "x" +
                           std::to_string(shape.cols) + ", tokens " + std::to_string(begin) + " to " +
                           std::to_string(begin + n),
                       shape.rows);
    };
    for (int64_t n : {1, 2, 3, 8, 9, 16, 17, 31, 32, 33, 63, 64, 65, 100, 128, 129, 255, 256, 257, 300, 511, 1000}) {
      for (int64_t begin : {int64_t{0}, int64_t{1}, int64_t{13}, kTokens - n}) {
        expect_same(begin, n);
        if (HasFailure()) return;
      }
    }
    expect_same(kTokens - 4096, 4096);
  }
}

// So wide that a part of a sum fills the ring more than once in every kernel, with eight parts a sum: small enough
// for racecheck to follow.
TEST_F(LinearTest, StagesThatAreFilledAgainGiveEveryNumberOfTokensTheSameBits) {
  constexpr int64_t kRows = 112, kCols = 40'960, kTokens = 300;
  for (WeightFormat format : {WeightFormat::kF8Tile32, WeightFormat::kMxfp4, WeightFormat::kBf16}) {
    const Matrix m = matrix(format, kRows, kCols);
    const PackedWeight weight = pack(m);
    const Floats x = random_values(kTokens * kCols, 1, ElementType::kBf16);
    const Floats all = product(weight, x, kTokens, ElementType::kF32);
    for (int64_t tokens : {1, 9, 40, 130}) {
      const Floats part(x.begin(), x.begin() + tokens * kCols);
      const Floats got = product(weight, part, tokens, ElementType::kF32);
      if (tokens == 1) expect_product(m, part, got, tokens, false, name_of(format));
      expect_same_bits(got, Floats(all.begin(), all.begin() + tokens * kRows),
                       std::string(name_of(format)) + ", tokens " + std::to_string(tokens), kRows);
    }
  }
}

TEST_F(LinearTest, ScalesOfTheWholeRangeAreRight) {
  constexpr int kRanges[][2] = {{0, 3}, {1, 20}, {100, 150}, {126, 134}, {150, 250}, {240, 254}, {0, 254}};
  for (WeightFormat format : {WeightFormat::kF8Tile32, WeightFormat::kMxfp4}) {
    for (const auto& [low, high] : kRanges) {
      constexpr int64_t kRows = 96, kCols = 192, kTokens = 5;
      const Matrix m = matrix(format, kRows, kCols, low, high);
      const PackedWeight weight = pack(m);
      // Such that sums stay numbers.
      const float size = std::ldexp(1.0f, high > 200 ? -40 : low < 30 ? 40 : 0);
      const Floats x = random_values(kTokens * kCols, size, ElementType::kBf16);
      expect_product(m, x, product(weight, x, kTokens, ElementType::kF32), kTokens, false,
                     std::string(name_of(format)) + " scales " + std::to_string(low) + " to " + std::to_string(high));
    }
  }
}

TEST_F(LinearTest, BlocksOfZerosMayHaveAnyScale) {
  for (WeightFormat format : {WeightFormat::kF8Tile32, WeightFormat::kMxfp4}) {
    constexpr int64_t kRows = 128, kCols = 128, kTokens = 3;
    Matrix m = matrix(format, kRows, kCols);
    const int64_t blocks = static_cast<int64_t>(m.scales.size());
    for (int64_t i = 0; i < blocks; i += 3) {
      m.scales[i] = static_cast<std::byte>(i % 2 == 0 ? 0 : 254);
      const int64_t per_row = kCols / 32, height = format == WeightFormat::kF8Tile32 ? 32 : 1;
      const int64_t width = format == WeightFormat::kF8Tile32 ? 32 : 16, row_bytes = width * per_row;
      for (int64_t r = 0; r < height; ++r) {
        std::memset(&m.data[(i / per_row * height + r) * row_bytes + i % per_row * width], 0, width);
      }
    }
    const Floats x = random_values(kTokens * kCols, 1, ElementType::kBf16);
    expect_product(m, x, product(pack(m), x, kTokens, ElementType::kF32), kTokens, false, name_of(format));
    std::fill(m.data.begin(), m.data.end(), std::byte{0});
    std::fill(m.scales.begin(), m.scales.end(), std::byte{254});
    for (float y : product(pack(m), x, kTokens, ElementType::kF32)) ASSERT_EQ(y, 0.0f);
  }
}

TEST_F(LinearTest, CodesAndScalesThatAreNotNumbersMakeTheirOutputsNotNumbers) {
  constexpr int64_t kRows = 64, kCols = 96, kTokens = 2;
  Matrix code = matrix(WeightFormat::kF8Tile32, kRows, kCols), scale = matrix(WeightFormat::kMxfp4, kRows, kCols);
  code.data[5 * kCols + 7] = std::byte{0xFF};
  scale.scales[5 * kCols / 32 + 1] = std::byte{255};
  for (const Matrix* m : {&code, &scale}) {
    const Floats x = random_values(kTokens * kCols, 1, ElementType::kBf16);
    const Floats y = product(pack(*m), x, kTokens, ElementType::kF32);
    for (int64_t i = 0; i < kTokens * kRows; ++i) ASSERT_EQ(std::isnan(y[i]), i % kRows == 5) << i;
  }
}

// fp32 activations: the order of ops/linear.h, to the bit.
TEST_F(LinearTest, Fp32ActivationsGiveTheBitsOfTheOrderThatIsPromised) {
  for (WeightFormat format : {WeightFormat::kF8Tile32, WeightFormat::kMxfp4, WeightFormat::kBf16, WeightFormat::kF32}) {
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{24, 640}, {80, 96}, {144, 2048}}) {
      const Matrix m = matrix(format, rows, cols);
      const PackedWeight weight = pack(m);
      for (int64_t tokens : {1, 5, 33}) {
        const Floats x = random_values(tokens * cols);
        const Tensor in = tensor(ElementType::kF32, tokens, cols, x, cols + 4);
        const Tensor out = poisoned(ElementType::kF32, tokens, rows, rows + 8);
        run(task(out, in, weight));
        Floats want(tokens * rows);
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t o = 0; o < rows; ++o) {
            float total = 0;
            for (int64_t k = 0; k < cols; k += 32) {
              float group = 0;
              double scale = 1;
              for (int64_t j = k; j < k + 32; ++j) {
                group = std::fmaf(static_cast<float>(m.value(o, j, &scale)), x[t * cols + j], group);
              }
              total = std::fmaf(group, static_cast<float>(scale), total);
            }
            want[t * rows + o] = total;
          }
        }
        expect_same_bits(out.values(), want, name_of(format), rows);
      }
    }
  }
}

TEST_F(LinearTest, TasksOfOneCallAreIndependentAndViewsMayBeStrided) {
  constexpr int64_t kTokens = 70, kCols = 1280;
  const Matrix a = matrix(WeightFormat::kF8Tile32, 512, kCols), b = matrix(WeightFormat::kBf16, 32, kCols);
  const Matrix c = matrix(WeightFormat::kMxfp4, 208, 320), d = matrix(WeightFormat::kF32, 24, kCols);
  const PackedWeight wa = pack(a), wb = pack(b), wc = pack(c), wd = pack(d);
  const Floats x = random_values(kTokens * kCols, 1, ElementType::kBf16);
  const Tensor in = tensor(ElementType::kBf16, kTokens, kCols, x, kCols + 24);
  for (int64_t tokens : {1, 6, 70}) {
    const Tensor ya = poisoned(ElementType::kBf16, tokens, 512, 520), yb = poisoned(ElementType::kF32, tokens, 32, 33);
    const Tensor yc = poisoned(ElementType::kF32, tokens, 3 * 208), yd = poisoned(ElementType::kF32, tokens, 24);
    std::vector<LinearTask> tasks = {task(ya, in, wa), task(yb, in, wb), task(yd, in, wd)};
    for (int i = 0; i < 3; ++i) {
      tasks.push_back(task(yc, in, wc));
      tasks.back().out = yc.view().columns(208 * i, 208 * (i + 1));
      tasks.back().in = in.view().columns(320 * i, 320 * (i + 1));
    }
    for (LinearTask& t : tasks) t.in = t.in.row_range(0, tokens);
    cuda::linear(stream(), tasks);
    const Floats used(x.begin(), x.begin() + tokens * kCols);
    expect_product(a, used, ya.values(), tokens, true, "f8");
    expect_product(b, used, yb.values(), tokens, false, "bf16");
    expect_product(d, used, yd.values(), tokens, false, "f32");
    const Floats all = yc.values();
    for (int i = 0; i < 3; ++i) {
      Floats xi, yi;
      for (int64_t t = 0; t < tokens; ++t) {
        xi.insert(xi.end(), x.begin() + t * kCols + 320 * i, x.begin() + t * kCols + 320 * (i + 1));
        yi.insert(yi.end(), all.begin() + t * 624 + 208 * i, all.begin() + t * 624 + 208 * (i + 1));
      }
      expect_product(c, xi, yi, tokens, false, "fp4 " + std::to_string(i));
    }
  }
}

// As the first projections of a layer: parts of both matrices in one launch.
TEST_F(LinearTest, MatricesBesideEachOtherGiveTheBitsOfEachAlone) {
  constexpr int64_t kTokens = 64, kCols = 5120, kRows[] = {1280, 512};
  const Tensor in = tensor(ElementType::kBf16, kTokens, kCols, random_values(kTokens * kCols));
  PackedWeight weights[2];
  for (int i = 0; i < 2; ++i) weights[i] = pack(matrix(WeightFormat::kF8Tile32, kRows[i], kCols));
  for (int64_t tokens : {1, 9, 20, 57, 64}) {
    Tensor together[2], alone[2];
    std::vector<LinearTask> tasks;
    for (int i = 0; i < 2; ++i) {
      together[i] = poisoned(ElementType::kF32, tokens, kRows[i]);
      alone[i] = poisoned(ElementType::kF32, tokens, kRows[i]);
      tasks.push_back(task(together[i], in, weights[i]));
      tasks.back().in = in.view().row_range(0, tokens);
      LinearTask one = tasks.back();
      one.out = alone[i].view();
      run(one);
    }
    cuda::linear(stream(), tasks);
    for (int i = 0; i < 2; ++i) {
      expect_same_bits(together[i].values(), alone[i].values(), std::to_string(tokens) + " tokens", kRows[i]);
    }
  }
}

TEST_F(LinearTest, MoreTasksThanALaunchTakesAllRun) {
  const Matrix m = matrix(WeightFormat::kF8Tile32, 64, 128);
  const PackedWeight weight = pack(m);
  const Floats x = random_values(3 * 128, 1, ElementType::kBf16);
  const Tensor in = tensor(ElementType::kBf16, 3, 128, x);
  const Tensor out = poisoned(ElementType::kF32, 3, 40 * 64);
  std::vector<LinearTask> tasks;
  for (int i = 0; i < 40; ++i) {
    tasks.push_back(task(out, in, weight));
    tasks.back().out = out.view().columns(64 * i, 64 * (i + 1));
  }
  cuda::linear(stream(), tasks);
  const Floats want = product(weight, x, 3, ElementType::kF32), got = out.values();
  for (int64_t i = 0; i < 3 * 40 * 64; ++i) ASSERT_EQ(got[i], want[i / 2560 * 64 + i % 64]) << i;
}

// Blocks of 64 tokens and more store BF16 outputs by another way than fp32 ones, also beside tasks that cannot.
TEST_F(LinearTest, RoundedOutputsOfManyTokensAreTheRoundedSums) {
  struct Shape {
    int64_t rows, cols, tokens;
  };
  constexpr Shape kShapes[] = {{336, 1248, 300}, {1280, 5120, 300}, {1280, 5120, 1000},
                               {5120, 512, 513}, {5120, 8192, 600}, {48, 64, 129},
                               {48, 64, 17},     {17024, 640, 61},  {1024, 4096, 64}};
  for (const Shape& shape : kShapes) {
    const Matrix m = matrix(WeightFormat::kF8Tile32, shape.rows, shape.cols);
    const PackedWeight weight = pack(m);
    const Floats x = random_values(shape.tokens * shape.cols, 1, ElementType::kBf16);
    Floats want = product(weight, x, shape.tokens, ElementType::kF32);
    for (float& value : want) value = round_to_bfloat16(value);
    const std::string what = std::to_string(shape.rows) + " outputs, tokens " + std::to_string(shape.tokens);
    expect_same_bits(product(weight, x, shape.tokens, ElementType::kBf16), want, what, shape.rows);
    const Tensor in = tensor(ElementType::kBf16, shape.tokens, shape.cols, x);
    const Tensor wide = poisoned(ElementType::kBf16, shape.tokens, shape.rows, shape.rows + 64);
    const Tensor uneven = poisoned(ElementType::kBf16, shape.tokens, shape.rows, shape.rows + 3);
    const Tensor sums = poisoned(ElementType::kF32, shape.tokens, shape.rows);
    const LinearTask tasks[] = {task(wide, in, weight), task(uneven, in, weight), task(sums, in, weight)};
    cuda::linear(stream(), tasks);
    expect_same_bits(wide.values(), want, what + ", beside others", shape.rows);
    expect_same_bits(uneven.values(), want, what + ", uneven rows", shape.rows);
  }
}

TEST_F(LinearTest, OutputsAreRoundedAndQuantisedAsTheyWouldBeAfterwards) {
  for (ElementType type : kBothTypes) {
    for (int64_t tokens : {1, 9, 40, 130}) {
      constexpr int64_t kRows = 352, kCols = 640;
      const Matrix m = matrix(WeightFormat::kF8Tile32, kRows, kCols, 100, 130);
      const PackedWeight weight = pack(m);
      const Floats x = random_values(tokens * kCols, 1, ElementType::kBf16);
      const Tensor in = tensor(ElementType::kBf16, tokens, kCols, x);
      const Tensor out = poisoned(type, tokens, kRows);
      LinearTask t = task(out, in, weight);
      t.round_output_to_bf16 = t.quantise_output = true;
      run(t);
      Floats want = product(weight, x, tokens, ElementType::kBf16);
      for (size_t group = 0; group < want.size(); group += 32) {
        float largest = 0;
        for (size_t i = group; i < group + 32; ++i) largest = std::max(largest, std::fabs(want[i]));
        const float scale = power_of_two_at_least(std::max(largest, 1e-4f) * (1.0f / 448.0f));
        for (size_t i = group; i < group + 32; ++i) want[i] = e4m3_to_float(float_to_e4m3(want[i] / scale)) * scale;
      }
      expect_same_bits(out.values(), want, name_of(type), kRows);
    }
  }
}

}  // namespace
}  // namespace deepinfer::cuda_test
