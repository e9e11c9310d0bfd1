#include "backends/cuda/kernels.h"
#include "backends/cuda/quantiser_reference.h"
#include "backends/cuda/rig.h"

namespace deepinfer::cuda_test {
namespace {

struct Shape {
  int64_t rows, hidden, h;
};

// Everything a boundary takes, on the host and on the card.
struct Problem {
  Shape shape;
  ElementType type;
  Floats streams, y, pre, post, mix, fn, scale, base, norm_weight;
};

class CudaMhcTest : public CudaTest {
 protected:
  static constexpr int kIterations = 20;
  static constexpr float kEps = 1e-6f, kNormEps = 1e-20f;

  Problem make(Shape s, ElementType type, float scale = 1) {
    Problem p{s, type, {}, {}, {}, {}, {}, {}, {}, {}, {}};
    const int64_t outputs = s.h * (s.h + 2);
    p.streams = random_values(s.rows * s.h * s.hidden, scale, type);
    p.y = random_values(s.rows * s.hidden, scale, type);
    p.pre = random_values(s.rows * s.h);
    p.post = random_values(s.rows * s.h);
    p.mix = random_values(s.rows * s.h * s.h, 0.5f);
    p.fn = random_values(outputs * s.h * s.hidden, 1.0f / std::sqrt(static_cast<float>(s.h * s.hidden)));
    p.scale = {0.7f, 1.1f, 1.5f};
    p.base = random_values(outputs, 0.5f);
    p.norm_weight = random_values(s.hidden);
    return p;
  }

  struct OnCardProblem {
    Tensor streams, y, out, quantised, pre, post, mix;
    OnCard<float> fn, scale, base, norm_weight;
    ops::PackedWeight weight;
    ops::MhcBoundaryArgs args;
  };
  OnCardProblem put(const Problem& p) {
    const auto [rows, hidden, h] = p.shape;
    OnCardProblem c;
    c.streams = tensor(p.type, rows, h * hidden, p.streams);
    c.y = tensor(p.type, rows, hidden, p.y, hidden + 8);
    c.out = poisoned(p.type, rows, hidden);
    c.quantised = poisoned(p.type, rows, hidden);
    c.pre = tensor(ElementType::kF32, rows, h, p.pre);
    c.post = tensor(ElementType::kF32, rows, h, p.post);
    c.mix = tensor(ElementType::kF32, rows, h * h, p.mix);
    c.fn = upload(p.fn), c.scale = upload(p.scale), c.base = upload(p.base), c.norm_weight = upload(p.norm_weight);
    c.weight = {ops::WeightFormat::kF32, h * (h + 2), h * hidden, 0,
                std::shared_ptr<std::byte>(reinterpret_cast<std::byte*>(c.fn.data()), [](std::byte*) {})};
    c.args.coefficients = {c.pre.f32(), c.post.f32(), c.mix.f32()};
    c.args.streams = c.streams.view(), c.args.y = c.y.view(), c.args.out = c.out.view();
    c.args.quantised = c.quantised.view();
    c.args.norm_weight = c.norm_weight.data();
    c.args.round_to_bf16 = p.type == ElementType::kBf16;
    return c;
  }
  // The weights name the packed weight, so they are made where it has come to rest.
  static ops::MhcWeights weights_of(const OnCardProblem& c, const Problem& p) {
    return {.fn = &c.weight,
            .scale = c.scale.data(),
            .base = c.base.data(),
            .num_streams = p.shape.h,
            .iterations = kIterations,
            .eps = kEps,
            .norm_eps = kNormEps};
  }

  // The streams after the update, the collapsed row before its norm: the operations of the contract one by one.
  static Floats updated(const Problem& p) {
    const auto [rows, hidden, h] = p.shape;
    Floats out = p.streams;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < h; ++j) {
        for (int64_t c = 0; c < hidden; ++c) {
          float x = p.post[r * h + j] * p.y[r * hidden + c];
          for (int64_t i = 0; i < h; ++i) {
            x = std::fma(p.mix[(r * h + i) * h + j], p.streams[(r * h + i) * hidden + c], x);
          }
          out[(r * h + j) * hidden + c] = p.type == ElementType::kBf16 ? round_to_bfloat16(x) : x;
        }
      }
    }
    return out;
  }
  static Floats collapsed(const Problem& p, const Floats& streams) {
    const auto [rows, hidden, h] = p.shape;
    Floats out(rows * hidden);
    for (int64_t r = 0; r < rows; ++r) {
      double squares = 0;
      for (int64_t c = 0; c < hidden; ++c) {
        float x = 0;
        for (int64_t s = 0; s < h; ++s) x = std::fma(p.pre[r * h + s], streams[(r * h + s) * hidden + c], x);
        out[r * hidden + c] = p.type == ElementType::kBf16 ? round_to_bfloat16(x) : x;
        squares += static_cast<double>(out[r * hidden + c]) * out[r * hidden + c];
      }
      const double norm = 1.0 / std::sqrt(squares / static_cast<double>(hidden) + kNormEps);
      for (int64_t c = 0; c < hidden; ++c) {
        out[r * hidden + c] = static_cast<float>(p.norm_weight[c] * (out[r * hidden + c] * norm));
      }
    }
    return out;
  }
  struct Coefficients {
    Floats pre, post, mix;
  };
  // In double.
  static Coefficients coefficients(const Problem& p, const Floats& streams) {
    const auto [rows, hidden, h] = p.shape;
    const int64_t cols = h * hidden;
    Coefficients out;
    for (int64_t r = 0; r < rows; ++r) {
      double squares = 0;
      for (int64_t k = 0; k < cols; ++k) squares += static_cast<double>(streams[r * cols + k]) * streams[r * cols + k];
      const double norm = 1.0 / std::sqrt(squares / static_cast<double>(cols) + kNormEps);
      std::vector<double> m(h * (h + 2));
      for (size_t o = 0; o < m.size(); ++o) {
        for (int64_t k = 0; k < cols; ++k) m[o] += static_cast<double>(p.fn[o * cols + k]) * streams[r * cols + k];
        const size_t kind = std::min<size_t>(o / h, 2);
        m[o] = m[o] * norm * p.scale[kind] + p.base[o];
      }
      for (int64_t s = 0; s < h; ++s) {
        out.pre.push_back(static_cast<float>(1 / (1 + std::exp(-m[s])) + kEps));
        out.post.push_back(static_cast<float>(2 / (1 + std::exp(-m[h + s]))));
      }
      std::vector<double> mix(m.begin() + 2 * h, m.end());
      const auto divide = [&](int64_t first, int64_t step) {
        double sum = kEps;
        for (int64_t i = 0; i < h; ++i) sum += mix[first + i * step];
        for (int64_t i = 0; i < h; ++i) mix[first + i * step] /= sum;
      };
      for (int64_t i = 0; i < h; ++i) {
        double sum = 0;
        for (int64_t j = 0; j < h; ++j) sum += mix[i * h + j] = std::exp(mix[i * h + j]);
        for (int64_t j = 0; j < h; ++j) mix[i * h + j] = mix[i * h + j] / sum + kEps;
      }
      for (int64_t j = 0; j < h; ++j) divide(j, h);
      for (int k = 1; k < kIterations; ++k) {
        for (int64_t i = 0; i < h; ++i) divide(i * h, 1);
        for (int64_t j = 0; j < h; ++j) divide(j, h);
      }
      for (double x : mix) out.mix.push_back(static_cast<float>(x));
    }
    return out;
  }
  static Floats quantised(const Floats& rows) { return quantise_reference(ops::FakeQuant::kE4m3Group32, rows).values; }
};

constexpr Shape kShapes[] = {{1, 128, 4}, {5, 128, 4},  {33, 96, 4},   {3, 160, 1},   {4, 128, 2},
                             {2, 64, 8},  {1, 5120, 4}, {17, 5120, 4}, {70, 1280, 4}, {2100, 128, 4}};

TEST_F(CudaMhcTest, BoundaryUpdatesCollapsesAndMakesTheNextCoefficients) {
  for (ElementType type : kBothTypes) {
    for (const Shape& shape : kShapes) {
      for (float scale : {1.0f, 1e-4f, 300.0f}) {
        const Problem p = make(shape, type, scale);
        OnCardProblem c = put(p);
        c.args.weights = weights_of(c, p);
        cuda::mhc_boundary(stream(), c.args);
        const std::string what = fmt::format("{} rows {} hidden {} streams {} scale {}", name_of(type), shape.rows,
                                             shape.hidden, shape.h, scale);
        const bool round = type == ElementType::kBf16;
        const Floats streams = updated(p);
        expect_same_bits(c.streams.values(), streams, what, shape.h * shape.hidden);
        const Floats out = c.out.values();
        expect_close(out, collapsed(p, streams), round ? 0x1.02p-8 : 1e-6, 1e-30, what, shape.hidden);
        expect_same_bits(c.quantised.values(), quantised(out), what, shape.hidden);
        const Coefficients want = coefficients(p, streams);
        // Errors of fp32 sums: a split of the weights that lost bits would show a hundred times these.
        expect_close(c.pre.values(), want.pre, 2e-6, 0, "pre, " + what, shape.h);
        expect_close(c.post.values(), want.post, 2e-6, 0, "post, " + what, shape.h);
        expect_close(c.mix.values(), want.mix, 6e-6, 1e-8, "mix, " + what, shape.h * shape.h);
      }
    }
  }
}

TEST_F(CudaMhcTest, BoundaryHasTheBitsOfTheThreeOpsOneAfterAnother) {
  for (ElementType type : kBothTypes) {
    for (const Shape& shape : kShapes) {
      for (bool with_y : {true, false}) {
        const Problem p = make(shape, type);
        OnCardProblem whole = put(p), steps = put(p);
        whole.args.weights = weights_of(whole, p);
        if (!with_y) whole.args.y = {};
        cuda::mhc_boundary(stream(), whole.args);

        const ops::MhcBoundaryArgs& a = steps.args;
        if (with_y) {
          cuda::mhc_update(stream(), {.streams = a.streams,
                                      .y = a.y,
                                      .post = a.coefficients.post,
                                      .mix = a.coefficients.mix,
                                      .round_to_bf16 = a.round_to_bf16});
        }
        cuda::mhc_collapse(stream(), {.out = a.out,
                                      .streams = a.streams,
                                      .pre = a.coefficients.pre,
                                      .norm_weight = a.norm_weight,
                                      .norm_eps = kNormEps,
                                      .round_to_bf16 = a.round_to_bf16,
                                      .quantised = a.quantised});
        cuda::mhc_coefficients(stream(),
                               {.weights = weights_of(steps, p), .out = a.coefficients, .streams = a.streams});
        const std::string what = fmt::format("{} rows {} hidden {} streams {} y {}", name_of(type), shape.rows,
                                             shape.hidden, shape.h, with_y);
        expect_same_bits(whole.streams.values(), steps.streams.values(), what);
        expect_same_bits(whole.out.values(), steps.out.values(), what);
        expect_same_bits(whole.quantised.values(), steps.quantised.values(), what);
        expect_same_bits(whole.pre.values(), steps.pre.values(), what);
        expect_same_bits(whole.post.values(), steps.post.values(), what);
        expect_same_bits(whole.mix.values(), steps.mix.values(), what);
      }
    }
  }
}

TEST_F(CudaMhcTest, ARowHasTheSameBitsInAnyBatch) {
  for (ElementType type : kBothTypes) {
    const Shape shape{type == ElementType::kBf16 ? 2300 : 300, type == ElementType::kBf16 ? 1280 : 256, 4};
    const Problem p = make(shape, type);
    OnCardProblem all = put(p);
    all.args.weights = weights_of(all, p);
    cuda::mhc_boundary(stream(), all.args);
    const Floats streams = all.streams.values(), out = all.out.values(), pre = all.pre.values(),
                 post = all.post.values(), mix = all.mix.values();
    for (auto [first, rows] : {std::array<int64_t, 2>{0, 1}, {7, 2}, {33, 3}, {100, 17}, {200, 64}, {1, 256}}) {
      const auto cut = [&](const Floats& values, int64_t cols) {
        return Floats(values.begin() + first * cols, values.begin() + (first + rows) * cols);
      };
      Problem part = p;
      part.shape.rows = rows;
      part.streams = cut(p.streams, 4 * shape.hidden), part.y = cut(p.y, shape.hidden);
      part.pre = cut(p.pre, 4), part.post = cut(p.post, 4), part.mix = cut(p.mix, 16);
      OnCardProblem some = put(part);
      some.args.weights = weights_of(some, part);
      cuda::mhc_boundary(stream(), some.args);
      const std::string what = fmt::format("{} rows {} to {}", name_of(type), first, first + rows);
      expect_same_bits(some.streams.values(), cut(streams, 4 * shape.hidden), what);
      expect_same_bits(some.out.values(), cut(out, shape.hidden), what);
      expect_same_bits(some.pre.values(), cut(pre, 4), what);
      expect_same_bits(some.post.values(), cut(post, 4), what);
      expect_same_bits(some.mix.values(), cut(mix, 16), what);
    }
  }
}

// Small enough for a race checker, and with every kernel.
TEST_F(CudaMhcTest, ReplaysFromAGraph) {
  for (int64_t rows : {9, 90}) {
    const Problem p = make({rows, 320, 4}, ElementType::kBf16);
    OnCardProblem once = put(p), replayed = put(p);
    once.args.weights = weights_of(once, p);
    replayed.args.weights = weights_of(replayed, p);
    for (int i = 0; i < 3; ++i) cuda::mhc_boundary(stream(), once.args);
    stream().begin_recording();
    cuda::mhc_boundary(stream(), replayed.args);
    const std::unique_ptr<Graph> graph = stream().end_recording();
    for (int i = 0; i < 3; ++i) stream().launch(*graph);
    expect_same_bits(replayed.streams.values(), once.streams.values(), "streams");
    expect_same_bits(replayed.out.values(), once.out.values(), "out");
    expect_same_bits(replayed.mix.values(), once.mix.values(), "mix");
  }
}

}  // namespace
}  // namespace deepinfer::cuda_test
