#include "ops/engram.h"

#include <cmath>

#include <gtest/gtest.h>

#include "golden_json.h"
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

}  // namespace
}  // namespace deepinfer::ops
