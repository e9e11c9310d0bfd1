#include "ops/mhc.h"

#include <cmath>

#include <gtest/gtest.h>

#include "golden_json.h"
#include "ops/quantisers.h"
#include "ops/rigs.h"

namespace deepinfer::ops {
namespace {

using Values = std::vector<float>;

struct Coefficients {
  int64_t streams = 0, hidden = 0;
  int iterations = 20;
  float eps = 1e-6f, norm_eps = 1e-20f;
  Values x, fn, scale, base;
  int64_t rows() const { return static_cast<int64_t>(x.size()) / (streams * hidden); }
};

enum Output { kPre, kPost, kMix };

// The parameters with `fn` packed for the rig.
struct PackedParameters {
  PackedWeight fn;
  MhcWeights weights;

  PackedParameters(const Rig& rig, const Coefficients& p) {
    const int64_t h = p.streams;
    fn = pack_weight(*rig.stream,
                     {WeightFormat::kF32, h * (h + 2), h * p.hidden, reinterpret_cast<const std::byte*>(p.fn.data())});
    weights = {&fn, p.scale.data(), p.base.data(), h, p.iterations, p.eps, p.norm_eps};
  }
};

Values coefficients(const Coefficients& p, Output wanted) {
  const int64_t h = p.streams;
  return on_every_rig(p.rows(), [&](const Rig& rig, int64_t begin, int64_t end) {
    const PackedParameters parameters(rig, p);
    Buffer<float> x(rig, h * p.hidden, rows_of(p.x, h * p.hidden, begin, end));
    Buffer<float> pre(rig, end - begin, h), post(rig, end - begin, h), mix(rig, end - begin, h * h);
    mhc_coefficients(*rig.stream, {parameters.weights, {pre.view(), post.view(), mix.view()}, x.view()});
    const Values all[] = {pre.values(), post.values(), mix.values()};
    return all[wanted];
  });
}

Values collapse(const Values& x, const Values& pre, int64_t streams, const Values& norm_weight, float eps, bool round) {
  const int64_t hidden = static_cast<int64_t>(norm_weight.size());
  return on_every_rig(pre.size() / streams, [&](const Rig& rig, int64_t begin, int64_t end) {
    Buffer<float> in(rig, streams * hidden, rows_of(x, streams * hidden, begin, end));
    Buffer<float> weights(rig, streams, rows_of(pre, streams, begin, end)), out(rig, end - begin, hidden);
    mhc_collapse(*rig.stream, {out.view(), in.view(), weights.view(), norm_weight.data(), eps, round});
    return out.values();
  });
}

Values update(const Values& x, const Values& y, const Values& post, const Values& mix, int64_t streams, bool round) {
  const int64_t rows = static_cast<int64_t>(post.size()) / streams, hidden = y.size() / rows;
  return on_every_rig(rows, [&](const Rig& rig, int64_t begin, int64_t end) {
    Buffer<float> out(rig, streams * hidden, rows_of(x, streams * hidden, begin, end));
    Buffer<float> in(rig, hidden, rows_of(y, hidden, begin, end)), c(rig, streams, rows_of(post, streams, begin, end));
    Buffer<float> b(rig, streams * streams, rows_of(mix, streams * streams, begin, end));
    mhc_update(*rig.stream, {out.view(), in.view(), c.view(), b.view(), round});
    return out.values();
  });
}

TEST(Mhc, gives_the_golden_values) {
  for (const GoldenCase& golden : read_golden_cases("mhc")) {
    SCOPED_TRACE(golden.name());
    Coefficients p;
    p.x = golden.floats("streams");
    p.fn = golden.floats("fn");
    p.scale = golden.floats("scale");
    p.base = golden.floats("base");
    p.iterations = static_cast<int>(golden.integer("iterations"));
    p.eps = static_cast<float>(golden.number("eps"));
    p.norm_eps = static_cast<float>(golden.number("norm_eps"));
    p.hidden = golden.rows("norm_weight");
    p.streams = static_cast<int64_t>(p.x.size()) / golden.rows("streams") / p.hidden;
    const Values pre = golden.floats("pre"), post = golden.floats("post"), mix = golden.floats("mix");
    expect_close(coefficients(p, kPre), golden.doubles("pre"), p.streams);
    expect_close(coefficients(p, kPost), golden.doubles("post"), p.streams);
    expect_close(coefficients(p, kMix), golden.doubles("mix"), p.streams * p.streams);
    expect_close(collapse(p.x, pre, p.streams, golden.floats("norm_weight"), p.norm_eps, false),
                 golden.doubles("collapsed"), p.hidden);
    expect_close(update(p.x, golden.floats("y"), post, mix, p.streams, false), golden.doubles("updated"), p.hidden);
  }
}

TEST(Mhc, gives_the_coefficients_of_the_model_s_description) {
  // Streams of root mean square 1, so that the projection is used as it is; `fn` reads it off the first channel.
  Coefficients p{
      .streams = 4, .hidden = 16, .x = Values(64, 1.0f), .scale = {0.5f, 0.25f, 1.0f}, .base = Values(24, 0.0f)};
  p.fn = Values(24 * 64, 0.0f);
  for (int k = 0; k < 24; ++k) {
    const float projection = (k - 11.5f) / 10;
    p.fn[k * 64] = k < 8 ? projection : std::sin(7 * projection);
  }
  expect_close(coefficients(p, kPre), {0.3600849, 0.3716848, 0.3834345, 0.3953219}, 4);
  expect_close(coefficients(p, kPost), {0.9065237, 0.9189283, 0.9313581, 0.9438093}, 4);
  expect_close(coefficients(p, kMix),
               {.276265, .208511, .204039, .311184, .175640, .316654, .309864, .197841, .440726, .247412, .153946,
                .157915, .107368, .227422, .332150, .333059},
               16);
}

// The definition in double precision: pre, post or mix of every token.
std::vector<double> defined(const Coefficients& p, Output wanted) {
  const int64_t h = p.streams, width = h * p.hidden;
  std::vector<double> out;
  for (int64_t t = 0; t < p.rows(); ++t) {
    double squares = 0;
    for (int64_t i = 0; i < width; ++i) squares += std::pow(static_cast<double>(p.x[t * width + i]), 2);
    const double norm = std::sqrt(squares / width + static_cast<double>(p.norm_eps));
    const auto logit = [&](int64_t k, int group) {
      double projection = 0;
      for (int64_t i = 0; i < width; ++i) projection += static_cast<double>(p.fn[k * width + i]) * p.x[t * width + i];
      return projection / norm * p.scale[group] + p.base[k];
    };
    for (int64_t s = 0; s < h && wanted == kPre; ++s) out.push_back(1 / (1 + std::exp(-logit(s, 0))) + p.eps);
    for (int64_t s = 0; s < h && wanted == kPost; ++s) out.push_back(2 / (1 + std::exp(-logit(h + s, 1))));
    if (wanted != kMix) continue;
    std::vector<double> mix(h * h);
    // Divides each of the h sums over `step` apart; `between` leads from one sum to the next.
    const auto divide = [&](int64_t between, int64_t step, double before, double after) {
      for (int64_t line = 0; line < h; ++line) {
        double sum = before;
        for (int64_t i = 0; i < h; ++i) sum += mix[line * between + i * step];
        for (int64_t i = 0; i < h; ++i) mix[line * between + i * step] = mix[line * between + i * step] / sum + after;
      }
    };
    for (int64_t i = 0; i < h * h; ++i) mix[i] = std::exp(logit(2 * h + i, 2));
    divide(h, 1, 0, p.eps);  // the softmax
    divide(1, h, p.eps, 0);
    for (int k = 1; k < p.iterations; ++k) {
      divide(h, 1, p.eps, 0);
      divide(1, h, p.eps, 0);
    }
    out.insert(out.end(), mix.begin(), mix.end());
  }
  return out;
}

TEST(Mhc, coefficients_are_the_definition_for_any_number_of_streams_and_any_scale) {
  Random random(1);
  for (const int64_t h : {1, 2, 3, 4, 5, 8}) {
    for (const float scale : {1e-11f, 1.0f, 1e4f}) {
      SCOPED_TRACE(testing::Message() << h << " streams of scale " << scale);
      Coefficients p{.streams = h, .hidden = 96, .scale = {0.5f, 0.7f, 0.9f}};
      p.iterations = h == 2 ? 1 : 20;
      p.x = random.normals(6 * h * 96, scale);
      p.fn = random.normals(h * (h + 2) * h * 96, 0.1f / std::sqrt(static_cast<float>(h)));
      p.base = random.normals(h * (h + 2), 0.5f);
      expect_close(coefficients(p, kPre), defined(p, kPre), h);
      expect_close(coefficients(p, kPost), defined(p, kPost), h);
      expect_close(coefficients(p, kMix), defined(p, kMix), h * h);
    }
  }
}

// A norm whose epsilon was 1e-6, or that loses small numbers, would scale these coefficients down to the bases.
TEST(Mhc, coefficients_do_not_depend_on_the_size_of_the_streams) {
  Random random(2);
  Coefficients p{.streams = 4, .hidden = 32, .scale = {0.5f, 0.7f, 0.9f}};
  const Values x = random.normals(3 * 128);
  p.fn = random.normals(24 * 128, 0.1f);
  p.base = random.normals(24);
  std::vector<std::vector<double>> expected;
  for (const float scale :
       {1.0f, 0x1p-24f, 0x1p-20f, 0x1p20f}) {  // powers of two, so that inputs stay the same numbers
    p.x = {};
    for (const float value : x) p.x.push_back(value * scale);
    for (const Output output : {kPre, kPost, kMix}) {
      const Values now = coefficients(p, output);
      if (scale == 1.0f) expected.emplace_back(now.begin(), now.end());
      expect_close(now, expected[output], output == kMix ? 16 : 4, 1e-5);
    }
  }
}

TEST(Mhc, collapse_is_the_norm_of_the_weighted_sum) {
  Random random(3);
  for (const int64_t h : {1, 2, 4, 5}) {
    for (const float scale : {1e-11f, 1.0f}) {
      constexpr int64_t kHidden = 80, kRows = 5;
      const Values x = random.normals(kRows * h * kHidden, scale), pre = random.normals(kRows * h),
                   weight = random.normals(kHidden);
      std::vector<double> expected;
      Values bf16_sums;
      for (int64_t t = 0; t < kRows; ++t) {
        std::vector<double> sum(kHidden, 0.0);
        double squares = 0;
        for (int64_t c = 0; c < kHidden; ++c) {
          for (int64_t s = 0; s < h; ++s) sum[c] += static_cast<double>(pre[t * h + s]) * x[(t * h + s) * kHidden + c];
          squares += sum[c] * sum[c];
        }
        for (int64_t c = 0; c < kHidden; ++c) {
          expected.push_back(weight[c] * sum[c] / std::sqrt(squares / kHidden + static_cast<double>(1e-20f)));
        }
      }
      expect_close(collapse(x, pre, h, weight, 1e-20f, false), expected, kHidden);
      // With rounding: the sum, then the result, each to 8 bits.
      const Values out = collapse(x, pre, h, weight, 1e-20f, true);
      EXPECT_EQ(out, rounded(out));
      expect_close(out, expected, kHidden, 0x1p-7);
    }
  }
}

TEST(Mhc, update_mixes_from_the_first_index_to_the_second) {
  Random random(4);
  for (const int64_t h : {1, 2, 3, 4, 8}) {
    constexpr int64_t kHidden = 48, kRows = 5;
    const Values x = random.normals(kRows * h * kHidden), y = random.normals(kRows * kHidden);
    const Values post = random.normals(kRows * h), mix = random.normals(kRows * h * h);
    std::vector<double> expected;
    for (int64_t t = 0; t < kRows; ++t) {
      for (int64_t j = 0; j < h; ++j) {
        for (int64_t c = 0; c < kHidden; ++c) {
          double sum = static_cast<double>(post[t * h + j]) * y[t * kHidden + c];
          for (int64_t i = 0; i < h; ++i)
            sum += static_cast<double>(mix[(t * h + i) * h + j]) * x[(t * h + i) * kHidden + c];
          expected.push_back(sum);
        }
      }
    }
    const Values out = update(x, y, post, mix, h, false);
    expect_close(out, expected, kHidden);
    EXPECT_EQ(first_difference(update(x, y, post, mix, h, true), rounded(out)), -1);
  }
}

TEST(Mhc, collapse_gives_with_its_result_the_bits_of_the_quantiser_after_it) {
  Random random(5);
  constexpr int64_t kHidden = 96, kRows = 5, kStreams = 4;
  const Values x = random.normals(kRows * kStreams * kHidden), pre = random.normals(kRows * kStreams),
               weight = random.normals(kHidden);
  for (const bool round : {false, true}) {
    const Values plain = collapse(x, pre, kStreams, weight, 1e-20f, round);
    const auto compute = [&](bool quantised_one) {
      return on_every_rig(kRows, [&](const Rig& rig, int64_t begin, int64_t end) {
        Buffer<float> in(rig, kStreams * kHidden, rows_of(x, kStreams * kHidden, begin, end));
        Buffer<float> weights(rig, kStreams, rows_of(pre, kStreams, begin, end));
        Buffer<float> out(rig, end - begin, kHidden), second(rig, end - begin, kHidden);
        mhc_collapse(*rig.stream, {out.view(), in.view(), weights.view(), weight.data(), 1e-20f, round, second.view()});
        return (quantised_one ? second : out).values();
      });
    };
    EXPECT_EQ(first_difference(compute(false), plain), -1);
    EXPECT_EQ(first_difference(compute(true), quantised(FakeQuant::kE4m3Group32, plain)), -1);
  }
}

TEST(Mhc, boundary_gives_the_bits_of_the_three_ops_one_after_another) {
  Random random(6);
  constexpr int64_t kRows = 5;
  for (const int64_t h : {1, 2, 4, 8}) {
    constexpr int64_t kHidden = 96;
    Coefficients p{.streams = h, .hidden = kHidden, .scale = {0.5f, 0.7f, 0.9f}};
    p.x = random.normals(kRows * h * kHidden);
    p.fn = random.normals(h * (h + 2) * h * kHidden, 0.1f);
    p.base = random.normals(h * (h + 2));
    const Values y = random.normals(kRows * kHidden), norm = random.normals(kHidden);
    const Values pre = random.normals(kRows * h), post = random.normals(kRows * h), mix = random.normals(kRows * h * h);
    for (const bool round : {false, true}) {
      for (const bool has_y : {false, true}) {
        for (const bool quantises : {false, true}) {
          SCOPED_TRACE(testing::Message() << h << " streams" << (round ? ", rounded" : "") << (has_y ? "" : ", no y")
                                          << (quantises ? ", quantised" : ""));
          // Everything that the ops leave, token by token.
          const auto compute = [&](bool in_one) {
            return on_every_rig(kRows, [&](const Rig& rig, int64_t begin, int64_t end) {
              const PackedParameters parameters(rig, p);
              Buffer<float> streams(rig, h * kHidden, rows_of(p.x, h * kHidden, begin, end));
              Buffer<float> in(rig, kHidden, rows_of(y, kHidden, begin, end));
              Buffer<float> a(rig, h, rows_of(pre, h, begin, end)), b(rig, h, rows_of(post, h, begin, end));
              Buffer<float> m(rig, h * h, rows_of(mix, h * h, begin, end));
              Buffer<float> out(rig, end - begin, kHidden), second(rig, end - begin, kHidden);
              const MhcCoefficients coefficients = {a.view(), b.view(), m.view()};
              const TensorView quantised_out = quantises ? TensorView(second.view()) : TensorView();
              if (in_one) {
                mhc_boundary(*rig.stream, {parameters.weights, coefficients, streams.view(),
                                           has_y ? ConstTensorView(in.view()) : ConstTensorView(), out.view(),
                                           quantised_out, norm.data(), round});
              } else {
                if (has_y) mhc_update(*rig.stream, {streams.view(), in.view(), b.view(), m.view(), round});
                mhc_collapse(*rig.stream,
                             {out.view(), streams.view(), a.view(), norm.data(), p.norm_eps, round, quantised_out});
                mhc_coefficients(*rig.stream, {parameters.weights, coefficients, streams.view()});
              }
              Values all;
              for (int64_t t = 0; t < end - begin; ++t) {
                for (Buffer<float>* part : {&streams, &a, &b, &m, &out, &second}) {
                  if (part == &second && !quantises) continue;
                  const MatrixView<float> view = part->view();
                  all.insert(all.end(), view.row(t), view.row(t) + view.cols);
                }
              }
              return all;
            });
          };
          EXPECT_EQ(first_difference(compute(true), compute(false)), -1);
        }
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer::ops
