// The op as the model calls it: golden weight formats, rigs and views. The kernels' own tests are in backends/cpu.
#include "ops/linear.h"

#include <cmath>

#include <gtest/gtest.h>

#include "base/number_formats.h"
#include "golden_json.h"
#include "ops/quantisers.h"
#include "ops/rigs.h"

namespace deepinfer::ops {
namespace {

using Values = std::vector<float>;

std::vector<std::byte> bytes_of(const std::vector<int32_t>& codes) {
  std::vector<std::byte> bytes;
  for (const int32_t code : codes) bytes.push_back(static_cast<std::byte>(code));
  return bytes;
}

Values linear_on_every_rig(const WeightSource& source, const Values& x) {
  return on_every_rig(x.size() / source.cols, [&](const Rig& rig, int64_t begin, int64_t end) {
    const PackedWeight weight = pack_weight(*rig.stream, source);
    Buffer<float> in(rig, source.cols, rows_of(x, source.cols, begin, end)), out(rig, end - begin, source.rows);
    const LinearTask task{out.view(), in.view(), &weight};
    linear(*rig.stream, {&task, 1});
    return out.values();
  });
}

TEST(Linear, decodes_the_golden_weights_exactly) {
  for (const GoldenCase& golden : read_golden_cases("weight_formats")) {
    if (golden.name() != "fp8_tile" && golden.name() != "fp4") continue;  // the others are no matrices of linear layers
    SCOPED_TRACE(golden.name());
    const bool fp8 = golden.name() == "fp8_tile";
    const Values values = golden.floats("values");
    const int64_t rows = golden.rows("values"), cols = values.size() / rows;
    const std::vector<std::byte> codes = bytes_of(golden.integers("codes")),
                                 scales = bytes_of(golden.integers("scale"));
    const WeightSource source{fp8 ? WeightFormat::kF8Tile32 : WeightFormat::kMxfp4, rows, cols, codes.data(),
                              scales.data()};
    // Unit vectors read out the columns.
    Values unit(cols * cols, 0.0f), expected;
    for (int64_t k = 0; k < cols; ++k) {
      unit[k * cols + k] = 1.0f;
      for (int64_t o = 0; o < rows; ++o) expected.push_back(values[o * cols + k]);
    }
    EXPECT_EQ(linear_on_every_rig(source, unit), expected);
  }
}

TEST(Linear, sums_groups_of_32_columns_in_the_order_of_its_contract) {
  Random random(1);
  constexpr int64_t kRows = 45, kCols = 96, kTokens = 7;
  const Values w = random.normals(kRows * kCols), x = random.normals(kTokens * kCols);
  Values expected;
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t o = 0; o < kRows; ++o) {
      float total = 0;
      for (int64_t group = 0; group < kCols; group += 32) {
        float sum = 0;
        for (int64_t k = group; k < group + 32; ++k) sum = std::fma(w[o * kCols + k], x[t * kCols + k], sum);
        total = std::fma(sum, 1.0f, total);
      }
      expected.push_back(total);
    }
  }
  const WeightSource source{WeightFormat::kF32, kRows, kCols, reinterpret_cast<const std::byte*>(w.data())};
  EXPECT_EQ(first_difference(linear_on_every_rig(source, x), expected), -1);
}

TEST(Linear, quantises_outputs_if_asked_with_the_bits_of_the_quantiser_after_it) {
  Random random(2);
  constexpr int64_t kRows = 96, kCols = 64, kTokens = 5, kTasks = 5;
  // Outputs side by side in one matrix, as the groups of an output projection are; the third stays as it is.
  constexpr bool kQuantised[kTasks] = {true, true, false, true, true};
  const Values w = random.normals(kTasks * kRows * kCols), x = rounded(random.normals(kTokens * kCols));
  const auto compute = [&](bool round, bool quantise) {
    return on_every_rig(kTokens, [&](const Rig& rig, int64_t begin, int64_t end) {
      Buffer<float> in(rig, kCols, rows_of(x, kCols, begin, end)), out(rig, end - begin, kTasks * kRows);
      std::vector<PackedWeight> weights;
      for (int64_t i = 0; i < kTasks; ++i) {
        const float* matrix = w.data() + i * kRows * kCols;
        weights.push_back(
            pack_weight(*rig.stream, {WeightFormat::kF32, kRows, kCols, reinterpret_cast<const std::byte*>(matrix)}));
      }
      std::vector<LinearTask> tasks;
      for (int64_t i = 0; i < kTasks; ++i) {
        tasks.push_back({out.view().columns(i * kRows, (i + 1) * kRows), in.view(), &weights[i], false, round,
                         quantise && kQuantised[i]});
      }
      linear(*rig.stream, tasks);
      return out.values();
    });
  };
  for (const bool round : {false, true}) {
    Values expected = compute(round, false);
    const Values codes = quantised(FakeQuant::kE4m3Group32, expected);
    for (size_t i = 0; i < expected.size(); ++i) {
      if (kQuantised[i / kRows % kTasks]) expected[i] = codes[i];
    }
    EXPECT_EQ(first_difference(compute(round, true), expected), -1);
  }
}

}  // namespace
}  // namespace deepinfer::ops
