#include "ops/engram.h"

#include <cmath>

#include <gtest/gtest.h>

#include "base/number_formats.h"
#include "golden_json.h"
#include "ops/elementwise.h"
#include "ops/rigs.h"

namespace deepinfer::ops {
namespace {

using Values = std::vector<float>;

Values apply(const Values& x, const Values& key_value, const Values& weight, int64_t streams, float eps, bool round) {
  const int64_t hidden = static_cast<int64_t>(weight.size()) / streams;
  return on_every_rig(x.size() / (streams * hidden), [&](const Rig& rig, int64_t begin, int64_t end) {
    Buffer<float> out(rig, streams * hidden, rows_of(x, streams * hidden, begin, end));
    Buffer<float> kv(rig, (streams + 1) * hidden, rows_of(key_value, (streams + 1) * hidden, begin, end));
    engram_apply(*rig.stream, {out.view(), kv.view(), weight.data(), streams, eps, round});
    return out.values();
  });
}

TEST(EngramApply, gives_the_golden_values) {
  for (const GoldenCase& golden : read_golden_cases("engram_gate")) {
    SCOPED_TRACE(golden.name());
    Values weight = golden.floats("q_weight");
    const Values key_weight = golden.floats("k_weight");
    for (size_t i = 0; i < weight.size(); ++i) weight[i] *= key_weight[i];  // exact: both are BF16
    const int64_t streams = golden.integer("num_streams"), hidden = weight.size() / streams;
    const Values out = apply(golden.floats("streams"), golden.floats("key_value"), weight, streams,
                             static_cast<float>(golden.number("norm_eps")), false);
    expect_close(out, golden.doubles("out"), hidden);
  }
}

TEST(EngramApply, is_the_definition_for_any_number_of_streams_and_any_scale) {
  Random random(1);
  for (const int64_t h : {1, 2, 3, 4}) {
    for (const float scale : {1e-11f, 1.0f, 1e3f}) {
      constexpr int64_t kHidden = 80, kRows = 5;
      const Values x = random.normals(kRows * h * kHidden, scale), kv = random.normals(kRows * (h + 1) * kHidden);
      const Values weight = random.normals(h * kHidden);
      std::vector<double> expected;
      for (int64_t t = 0; t < kRows; ++t) {
        for (int64_t s = 0; s < h; ++s) {
          double dot = 0, squares_x = 0, squares_key = 0;
          for (int64_t c = 0; c < kHidden; ++c) {
            const double a = x[(t * h + s) * kHidden + c], key = kv[(t * (h + 1) + s) * kHidden + c];
            dot += a * weight[s * kHidden + c] * key;
            squares_x += a * a;
            squares_key += key * key;
          }
          const double eps = 1e-20f;
          const double g =
              dot / std::sqrt(squares_x / kHidden + eps) / std::sqrt(squares_key / kHidden + eps) / std::sqrt(80.0);
          const double gate = 1 / (1 + std::exp(-std::copysign(std::sqrt(std::max(std::fabs(g), 1e-6)), g)));
          for (int64_t c = 0; c < kHidden; ++c) {
            expected.push_back(x[(t * h + s) * kHidden + c] + gate * kv[(t * (h + 1) + h) * kHidden + c]);
          }
        }
      }
      SCOPED_TRACE(testing::Message() << h << " streams of scale " << scale);
      const Values out = apply(x, kv, weight, h, 1e-20f, false);
      expect_close(out, expected, kHidden);
      EXPECT_EQ(first_difference(apply(x, kv, weight, h, 1e-20f, true), rounded(out)), -1);
    }
  }
}

TEST(EngramApply, opens_the_gate_just_over_half_way_where_the_key_says_nothing) {
  Values kv(32, 0.0f);
  std::fill(kv.begin() + 16, kv.end(), 1.0f);
  const Values out = apply(Values(16, 0.0f), kv, Values(16, 1.0f), 1, 1e-20f, false);
  expect_close(out, std::vector<double>(16, 1 / (1 + std::exp(-1e-3))), 16, 1e-7);
}

// Codes of all kinds, NaN included, and scales down to the subnormal one; a row a code of scales.
struct Table {
  int64_t dim = 0;
  std::vector<uint8_t> codes, scales;

  Table(Random& random, int64_t rows, int64_t width) : dim(width) {
    for (int64_t i = 0; i < rows * dim; ++i) codes.push_back(static_cast<uint8_t>(random.bits()));
    for (int64_t i = 0; i < rows * dim / 32; ++i) scales.push_back(static_cast<uint8_t>(random.between(0, 254)));
    scales[0] = 0;
  }
  float value(int64_t row, int64_t column) const {
    return e4m3_to_float(codes[row * dim + column]) * e8m0_to_float(scales[(row * dim + column) / 32]);
  }
};

// NaN has many bit patterns; one stands for all.
Values with_one_nan(Values values) {
  for (float& value : values) value = std::isnan(value) ? std::nanf("") : value;
  return values;
}

TEST(EngramRows, quantised_are_the_values_through_the_quantiser) {
  Random random(3);
  constexpr int64_t kTokens = 5, kColumns = 3, kDim = 96;
  const Table table(random, kTokens * kColumns, kDim);
  const auto values = [&](bool fused) {
    return on_every_rig(kTokens, [&](const Rig& rig, int64_t begin, int64_t end) {
      Buffer<float> rows(rig, end - begin, kColumns * kDim), quantised(rig, end - begin, kColumns * kDim);
      const int64_t first = begin * kColumns;
      EngramRowsArgs args{.out = fused ? quantised.view() : rows.view(),
                          .codes = table.codes.data() + first * kDim,
                          .scales = table.scales.data() + first * kDim / 32,
                          .num_columns = kColumns,
                          .quantise = fused};
      engram_rows(*rig.stream, args);
      if (!fused) fake_quant(*rig.stream, {FakeQuant::kE4m3Group32, quantised.view(), rows.view()});
      return with_one_nan(quantised.values());
    });
  };
  EXPECT_EQ(first_difference(values(true), values(false)), -1);
}

TEST(EngramRows, puts_the_values_of_the_named_rows_of_a_token_one_after_another) {
  Random random(2);
  for (const int64_t dim : {32, 96, 256}) {
    for (const int64_t columns : {1, 3, 8}) {
      constexpr int64_t kRows = 50, kTokens = 9;
      const Table table(random, kRows, dim);
      std::vector<int64_t> rows;
      for (int64_t i = 0; i < kTokens * columns; ++i) rows.push_back(random.between(0, kRows - 1));
      rows[0] = 0;
      for (const bool gathered : {false, true}) {
        if (gathered && kTokens * columns > kRows) continue;
        Values expected;
        for (int64_t i = 0; i < kTokens * columns; ++i) {
          for (int64_t c = 0; c < dim; ++c) expected.push_back(table.value(gathered ? i : rows[i], c));
        }
        const Values out = on_every_rig(kTokens, [&](const Rig& rig, int64_t begin, int64_t end) {
          Buffer<float> result(rig, end - begin, columns * dim);
          // Gathered rows begin with those of the first token.
          const int64_t first = gathered ? begin * columns : 0;
          engram_rows(*rig.stream,
                      {result.view(), table.codes.data() + first * dim, table.scales.data() + first * dim / 32,
                       gathered ? nullptr : rows.data() + begin * columns, columns});
          return with_one_nan(result.values());
        });
        EXPECT_EQ(first_difference(out, with_one_nan(expected)), -1) << dim << " values, " << columns << " columns";
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer::ops
