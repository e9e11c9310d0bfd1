#include "ops/elementwise.h"

#include <array>
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "base/number_formats.h"
#include "golden_json.h"
#include "ops/quantisers.h"
#include "ops/rigs.h"

namespace deepinfer::ops {
namespace {

using Values = std::vector<float>;

Values rms_norm_on_every_rig(const Values& x, const Values& weight, float eps, bool round) {
  const int64_t width = static_cast<int64_t>(weight.size());
  return on_every_rig(x.size() / width, [&](const Rig& rig, int64_t begin, int64_t end) {
    Buffer<float> in(rig, width, rows_of(x, width, begin, end));
    Buffer<float> out(rig, end - begin, width);
    rms_norm(*rig.stream, {out.view(), in.view(), weight.data(), eps, round});
    rms_norm(*rig.stream, {in.view(), in.view(), weight.data(), eps, round});
    EXPECT_EQ(first_difference(in.values(), out.values()), -1) << "in place";
    return out.values();
  });
}

TEST(RmsNorm, gives_the_golden_values) {
  for (const GoldenCase& golden : read_golden_cases("rms_norm")) {
    SCOPED_TRACE(golden.name());
    const Values weight = golden.floats("weight");
    const Values out =
        rms_norm_on_every_rig(golden.floats("x"), weight, static_cast<float>(golden.number("eps")), false);
    expect_close(out, golden.doubles("out"), static_cast<int64_t>(weight.size()));
  }
}

TEST(RmsNorm, is_the_definition_for_every_width_and_scale) {
  Random random(1);
  for (const int64_t width : {16, 32, 48, 64, 80, 112, 128, 176, 1280}) {
    for (const float scale : {1e-11f, 1e-3f, 1.0f, 1e4f}) {
      SCOPED_TRACE(testing::Message() << "width " << width << ", scale " << scale);
      const Values x = random.normals(5 * width, scale), weight = random.normals(width);
      const Values out = rms_norm_on_every_rig(x, weight, 1e-20f, false);
      std::vector<double> expected;
      for (int64_t r = 0; r < 5; ++r) {
        double sum = 0;
        for (int64_t c = 0; c < width; ++c) sum += static_cast<double>(x[r * width + c]) * x[r * width + c];
        const double norm = std::sqrt(sum / width + static_cast<double>(1e-20f));
        for (int64_t c = 0; c < width; ++c)
          expected.push_back(weight[c] * static_cast<double>(x[r * width + c]) / norm);
      }
      expect_close(out, expected, width);
      EXPECT_EQ(first_difference(rms_norm_on_every_rig(x, weight, 1e-20f, true), rounded(out)), -1);
    }
  }
}

TEST(RmsNorm, gives_with_its_result_the_bits_of_the_quantiser_after_it) {
  Random random(8);
  for (const int64_t width : {32, 96, 1280}) {
    for (const bool round : {false, true}) {
      const Values x = random.normals(6 * width, 3), weight = random.normals(width);
      const Values norm = rms_norm_on_every_rig(x, weight, 1e-6f, round);
      const auto compute = [&](bool quantised_one) {
        return on_every_rig(6, [&](const Rig& rig, int64_t begin, int64_t end) {
          Buffer<float> in(rig, width, rows_of(x, width, begin, end));
          Buffer<float> out(rig, end - begin, width), second(rig, end - begin, width);
          rms_norm(*rig.stream, {out.view(), in.view(), weight.data(), 1e-6f, round, second.view()});
          return (quantised_one ? second : out).values();
        });
      };
      EXPECT_EQ(first_difference(compute(false), norm), -1);
      EXPECT_EQ(first_difference(compute(true), quantised(FakeQuant::kE4m3Group32, norm)), -1);
    }
  }
}

TEST(RmsNorm, of_a_zero_row_is_zero) {
  EXPECT_EQ(rms_norm_on_every_rig(Values(32, 0.0f), Values(32, 2.0f), 1e-20f, true), Values(32, 0.0f));
}

TEST(Embed, copies_the_row_of_each_token_to_every_stream) {
  Random random(2);
  constexpr int64_t kVocabulary = 37, kHidden = 48;
  std::vector<std::byte> bytes(1 + kVocabulary * kHidden * 2);  // one byte off: the file promises no alignment
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.bits() & 0x7E);
  std::vector<int32_t> tokens;
  for (int i = 0; i < 50; ++i) tokens.push_back(static_cast<int32_t>(random.between(0, kVocabulary - 1)));
  for (const int64_t streams : {1, 2, 4}) {
    Values expected;
    for (const int32_t token : tokens) {
      for (int64_t i = 0; i < streams * kHidden; ++i) {
        const size_t at = 1 + 2 * (token * kHidden + i % kHidden);
        const auto low = static_cast<uint16_t>(bytes[at]), high = static_cast<uint16_t>(bytes[at + 1]);
        expected.push_back(to_float(BFloat16{static_cast<uint16_t>(low | high << 8)}));
      }
    }
    const Values out = on_every_rig(tokens.size(), [&](const Rig& rig, int64_t begin, int64_t end) {
      Buffer<float> result(rig, end - begin, streams * kHidden);
      embed(*rig.stream, {result.view(), tokens.data() + begin, bytes.data() + 1, kHidden});
      return result.values();
    });
    EXPECT_EQ(first_difference(out, expected), -1) << streams << " streams";
  }
}

Values fake_quant_on_every_rig(FakeQuant kind, const Values& x, int64_t width) {
  return on_every_rig(x.size() / width, [&](const Rig& rig, int64_t begin, int64_t end) {
    Buffer<float> in(rig, width, rows_of(x, width, begin, end));
    Buffer<float> out(rig, end - begin, width);
    fake_quant(*rig.stream, {kind, out.view(), in.view()});
    fake_quant(*rig.stream, {kind, in.view(), in.view()});
    EXPECT_EQ(first_difference(in.values(), out.values()), -1) << "in place";
    return out.values();
  });
}

TEST(FakeQuant, gives_the_golden_values_exactly) {
  const std::vector<GoldenCase> cases = read_golden_cases("quantisers");
  ASSERT_EQ(cases.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(cases[i].integer("group"), quantiser_group(kKinds[i])) << cases[i].name();
    const Values x = cases[i].floats("x");
    const Values out = fake_quant_on_every_rig(kKinds[i], x, x.size() / cases[i].rows("x"));
    // The file does not tell the sign of a zero.
    EXPECT_EQ(out, cases[i].floats("out")) << cases[i].name();
  }
}

TEST(FakeQuant, gives_the_values_of_the_model_s_description) {
  Values line(32), tenths(16);
  for (int i = 0; i < 32; ++i) line[i] = round_to_bfloat16(-3.0f + 6.0f * i / 31.0f);
  for (int i = 0; i < 16; ++i) tenths[i] = round_to_bfloat16(0.1f * (i - 7.5f));
  Values out = fake_quant_on_every_rig(FakeQuant::kE4m3Group32, line, 32);
  EXPECT_EQ(Values(out.begin(), out.begin() + 8), (Values{-3, -2.75, -2.5, -2.5, -2.25, -2, -1.875, -1.625}));
  out = fake_quant_on_every_rig(FakeQuant::kE2m1Group32, line, 32);
  EXPECT_EQ(Values(out.begin(), out.begin() + 8), (Values{-3, -3, -3, -2, -2, -2, -2, -1.5}));
  EXPECT_EQ(fake_quant_on_every_rig(FakeQuant::kE2m1Group16, tenths, 16),
            (Values{-0.75, -0.75, -0.5, -0.5, -0.375, -0.25, -0.125, -0.0625, 0.0625, 0.125, 0.25, 0.375, 0.5, 0.5,
                    0.75, 0.75}));
}

TEST(FakeQuant, is_the_scalar_definition_on_random_values_of_every_magnitude) {
  Random random(3);
  for (const FakeQuant kind : kKinds) {
    for (const int64_t width : {32, 96, 512}) {
      const Values x = rows_of_every_magnitude(random, 40, width, -149, 120);
      const Values out = fake_quant_on_every_rig(kind, x, width);
      EXPECT_EQ(first_difference(out, quantised(kind, x)), -1)
          << "kind " << static_cast<int>(kind) << ", width " << width;
      EXPECT_EQ(first_difference(out, rounded(out)), -1) << "the result is exact in BF16";
    }
  }
}

TEST(FakeQuant, rounds_exact_ties_as_the_scalar_definition) {
  Random random(4);
  for (const FakeQuant kind : kKinds) {
    const Values x = groups_of_ties(random, kind, 600);
    EXPECT_EQ(first_difference(fake_quant_on_every_rig(kind, x, quantiser_group(kind) * 4), quantised(kind, x)), -1)
        << "kind " << static_cast<int>(kind);
  }
}

Values rope_on_every_rig(const Values& x, int64_t heads, const Values& cosine, const Values& sine, int64_t rows,
                         bool inverse, bool round = false) {
  const int64_t width = x.size() / rows, pairs = cosine.size() / rows;
  return on_every_rig(rows, [&](const Rig& rig, int64_t begin, int64_t end) {
    Buffer<float> data(rig, width, rows_of(x, width, begin, end));
    Buffer<float> c(rig, pairs, rows_of(cosine, pairs, begin, end)), s(rig, pairs, rows_of(sine, pairs, begin, end));
    rope(*rig.stream, {data.view(), heads, c.view(), s.view(), inverse, round});
    return data.values();
  });
}

struct Angles {
  Values cosine, sine;
};

Angles angles_on_every_rig(const std::vector<int64_t>& positions, const Values& frequencies, int64_t ratio = 1) {
  const int64_t pairs = static_cast<int64_t>(frequencies.size());
  const auto compute = [&](bool sines) {
    return on_every_rig(positions.size(), [&](const Rig& rig, int64_t begin, int64_t end) {
      Buffer<float> c(rig, end - begin, pairs), s(rig, end - begin, pairs);
      rope_angles(*rig.stream, {c.view(), s.view(), positions.data() + begin, frequencies.data(), ratio});
      return (sines ? s : c).values();
    });
  };
  return {compute(false), compute(true)};
}

TEST(Rope, gives_the_golden_angles_and_rotations) {
  for (const GoldenCase& golden : read_golden_cases("rope")) {
    SCOPED_TRACE(golden.name());
    const std::vector<int32_t> narrow = golden.integers("positions");
    const std::vector<int64_t> positions(narrow.begin(), narrow.end());
    const int64_t rows = golden.rows("x"), pairs = golden.rows("frequencies");
    const Angles angles = angles_on_every_rig(positions, golden.floats("frequencies"));
    // Each angle on its own: a long context tells fp32 angles from exact ones.
    expect_close(angles.cosine, golden.doubles("cos"), pairs, 1e-7);
    expect_close(angles.sine, golden.doubles("sin"), pairs, 1e-7);
    const Values x = golden.floats("x");
    const int64_t width = x.size() / rows;
    expect_close(rope_on_every_rig(x, 1, angles.cosine, angles.sine, rows, false), golden.doubles("rotated"), width);
    expect_close(rope_on_every_rig(x, 1, angles.cosine, angles.sine, rows, true), golden.doubles("rotated_back"),
                 width);
  }
}

TEST(Rope, takes_the_angles_of_the_first_token_of_a_group) {
  Random random(9);
  const Values frequencies = {1.0f, 0.3f, 1e-4f};
  std::vector<int64_t> positions;
  for (int i = 0; i < 40; ++i) positions.push_back(random.between(0, 1 << 20));
  for (const int64_t ratio : {1, 2, 3, 128}) {
    std::vector<int64_t> first;
    for (const int64_t position : positions) first.push_back(position - position % ratio);
    const Angles grouped = angles_on_every_rig(positions, frequencies, ratio);
    const Angles expected = angles_on_every_rig(first, frequencies);
    EXPECT_EQ(first_difference(grouped.cosine, expected.cosine), -1) << "groups of " << ratio;
    EXPECT_EQ(first_difference(grouped.sine, expected.sine), -1) << "groups of " << ratio;
  }
}

TEST(Rope, turns_the_last_channels_of_each_head_and_leaves_the_others) {
  Random random(5);
  constexpr int64_t kRows = 4, kPairs = 5, kHeadDim = 16;
  const Values angle = random.normals(kRows * kPairs, 3);
  Values cosine, sine;
  for (const float a : angle) cosine.push_back(std::cos(a)), sine.push_back(std::sin(a));
  for (const int64_t heads : {1, 3, 7}) {
    const Values x = random.normals(kRows * heads * kHeadDim);
    const Values out = rope_on_every_rig(x, heads, cosine, sine, kRows, false);
    std::vector<double> expected(x.begin(), x.end());
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t head = (r * heads + h) * kHeadDim;
        for (int64_t i = 0; i < kHeadDim - 2 * kPairs; ++i) EXPECT_EQ(out[head + i], x[head + i]);
        for (int64_t j = 0; j < kPairs; ++j) {
          const int64_t at = head + kHeadDim - 2 * kPairs + 2 * j;
          const double c = cosine[r * kPairs + j], s = sine[r * kPairs + j];
          expected[at] = x[at] * c - x[at + 1] * s;
          expected[at + 1] = x[at] * s + x[at + 1] * c;
        }
      }
    }
    expect_close(out, expected, kHeadDim);
    // Rounding touches the turned channels only; these inputs are no BF16 numbers.
    const Values round = rope_on_every_rig(x, heads, cosine, sine, kRows, false, true);
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(round[i], i % kHeadDim < kHeadDim - 2 * kPairs ? x[i] : round_to_bfloat16(out[i]));
    }
  }
}

TEST(Rope, with_a_quantiser_gives_the_bits_of_the_quantiser_after_it) {
  Random random(6);
  constexpr int64_t kRows = 5, kPairs = 8, kHeads = 3, kHeadDim = 64;
  Values cosine, sine;
  for (const float a : random.normals(kRows * kPairs, 3)) cosine.push_back(std::cos(a)), sine.push_back(std::sin(a));
  const Values x = random.normals(kRows * kHeads * kHeadDim, 2);
  for (const FakeQuant kind : kKinds) {
    const Values out = on_every_rig(kRows, [&](const Rig& rig, int64_t begin, int64_t end) {
      Buffer<float> data(rig, kHeads * kHeadDim, rows_of(x, kHeads * kHeadDim, begin, end));
      Buffer<float> c(rig, kPairs, rows_of(cosine, kPairs, begin, end)),
          s(rig, kPairs, rows_of(sine, kPairs, begin, end));
      rope(*rig.stream, {data.view(), kHeads, c.view(), s.view(), false, true, kind});
      return data.values();
    });
    EXPECT_EQ(first_difference(out, quantised(kind, rope_on_every_rig(x, kHeads, cosine, sine, kRows, false, true))),
              -1);
  }
}

Values swiglu_on_every_rig(const Values& gate, const Values& up, const Values* weight, float limit, int64_t width,
                           bool round) {
  return on_every_rig(gate.size() / width, [&](const Rig& rig, int64_t begin, int64_t end) {
    Buffer<float> g(rig, width, rows_of(gate, width, begin, end)), u(rig, width, rows_of(up, width, begin, end));
    Buffer<float> out(rig, end - begin, width);
    const float* weights = weight ? weight->data() + begin : nullptr;
    swiglu(*rig.stream, {out.view(), g.view(), u.view(), weights, limit, round});
    swiglu(*rig.stream, {g.view(), g.view(), u.view(), weights, limit, round});
    EXPECT_EQ(first_difference(g.values(), out.values()), -1) << "in place";
    return out.values();
  });
}

TEST(Swiglu, gives_the_golden_values) {
  for (const GoldenCase& golden : read_golden_cases("swiglu")) {
    SCOPED_TRACE(golden.name());
    const Values gate = golden.floats("gate"), up = golden.floats("up");
    const int64_t width = gate.size() / golden.rows("gate");
    const Values weight = golden.has("weight") ? golden.floats("weight") : Values();
    const float limit = static_cast<float>(golden.number("limit"));
    const Values out = swiglu_on_every_rig(gate, up, golden.has("weight") ? &weight : nullptr, limit, width, false);
    expect_close(out, golden.doubles("out"), width);
    EXPECT_EQ(swiglu_on_every_rig(gate, up, golden.has("weight") ? &weight : nullptr, limit, width, true),
              rounded(out));
  }
}

TEST(Swiglu, limits_the_gate_from_above_only_and_the_other_factor_from_both_sides) {
  const Values gate = {100, 10, 9.5f, -5, -20, -80, -200, 0, 1e30f, -1e30f, 0.5f, -0.5f, 3, -3, 88, -88};
  const Values up = {100, -100, 10.5f, -10.5f, 9, -9, 1e30f, -1e30f, 1, 1, 2, 2, 0, 0, -1, -1};
  const Values out = swiglu_on_every_rig(gate, up, nullptr, 10, 16, false);
  for (size_t i = 0; i < gate.size(); ++i) {
    const double g = std::min<double>(gate[i], 10), u = std::clamp<double>(up[i], -10, 10);
    const double expected = g / (1 + std::exp(-g)) * u;
    const double floor = 7e-39 * std::fabs(g * u);  // fp32 sigmoids end near 6e-39
    EXPECT_NEAR(out[i], expected, 2e-6 * std::fabs(expected) + floor) << "gate " << gate[i] << ", up " << up[i];
  }
}

TEST(GatherRows, copies_any_rows_in_any_order) {
  Random random(6);
  constexpr int64_t kRows = 9, kWidth = 35;
  const Values in = random.normals(kRows * kWidth);
  std::vector<int32_t> rows;
  for (int i = 0; i < 700; ++i) rows.push_back(static_cast<int32_t>(random.between(0, kRows - 1)));
  Values expected;
  for (const int32_t row : rows)
    expected.insert(expected.end(), in.begin() + row * kWidth, in.begin() + (row + 1) * kWidth);
  const Values out = on_every_rig(rows.size(), [&](const Rig& rig, int64_t begin, int64_t end) {
    Buffer<float> source(rig, kWidth, in), result(rig, end - begin, kWidth);
    gather_rows(*rig.stream, {result.view(), source.view(), rows.data() + begin});
    return result.values();
  });
  EXPECT_EQ(first_difference(out, expected), -1);
}

// Two sequences of blocks of 4 rows, the second's in reverse; a block nobody writes is absent.
class TwoSequences {
 public:
  TwoSequences(RowType type, int64_t width)
      : type_(type), width_(width), blocks_(4, std::vector<std::byte>(4 * row_bytes(type, width), std::byte{0x5A})) {}

  std::byte* const* first() { return first_ = {blocks_[0].data(), nullptr, blocks_[1].data()}, first_.data(); }
  std::byte* const* second() { return second_ = {blocks_[3].data(), blocks_[2].data()}, second_.data(); }
  RowTables tables(const std::vector<std::byte* const*>& blocks) const { return {blocks.data(), 2, type_, width_}; }

  // The bytes of one row, as a kF32 or kBf16 row holds them.
  void store(int block, int row, const float* values) {
    std::byte* at = blocks_[block].data() + row * row_bytes(type_, width_);
    for (int64_t c = 0; c < width_; ++c) {
      const uint16_t half = to_bfloat16(values[c]).bits;
      if (type_ == RowType::kF32) std::memcpy(at + 4 * c, &values[c], 4);
      if (type_ == RowType::kBf16) std::memcpy(at + 2 * c, &half, 2);
    }
  }
  const std::vector<std::vector<std::byte>>& blocks() const { return blocks_; }

 private:
  RowType type_;
  int64_t width_;
  std::vector<std::vector<std::byte>> blocks_;
  std::array<std::byte*, 3> first_;
  std::array<std::byte*, 2> second_;
};

TEST(WriteRows, writes_each_row_into_its_own_table_and_nothing_else) {
  Random random(7);
  constexpr int64_t kWidth = 21;
  const Values in = random.normals(8 * kWidth);
  for (const RowType type : {RowType::kF32, RowType::kBf16}) {
    for (const Rig& rig : all_rigs()) {
      TwoSequences written(type, kWidth), expected(type, kWidth);
      std::byte* const* const a = written.first();
      std::byte* const* const b = written.second();
      // The last two are padding rows, by their position and by their table.
      const std::vector<std::byte* const*> tables = {a, b, a, b, a, b, a, nullptr};
      const std::vector<int64_t> positions = {0, 7, 11, 0, 8, 3, -1, 2};
      Buffer<float> source(rig, kWidth, in);
      write_rows(*rig.stream, {.in = source.view(), .tables = written.tables(tables), .positions = positions.data()});
      const std::pair<int, int> places[] = {{0, 0}, {2, 3}, {1, 3}, {3, 0}, {1, 0}, {3, 3}};
      for (int i = 0; i < 6; ++i) expected.store(places[i].first, places[i].second, in.data() + i * kWidth);
      EXPECT_EQ(written.blocks(), expected.blocks()) << rig.name;
    }
  }
}

TEST(WriteRows, writes_one_row_for_each_group_of_tokens_that_is_closed) {
  Random random(10);
  constexpr int64_t kWidth = 21;
  const Values in = random.normals(7 * kWidth);
  for (const Rig& rig : all_rigs()) {
    TwoSequences written(RowType::kF32, kWidth), expected(RowType::kF32, kWidth);
    std::byte* const* const a = written.first();
    std::byte* const* const b = written.second();
    const std::vector<std::byte* const*> tables = {a, a, a, b, b, b, a};
    const std::vector<int64_t> positions = {0, 1, 2, 20, 19, 5, 26};
    Buffer<float> source(rig, kWidth, in);
    write_rows(*rig.stream,
               {.in = source.view(), .tables = written.tables(tables), .positions = positions.data(), .ratio = 3});
    expected.store(0, 0, in.data() + 2 * kWidth);  // position 2: row 0
    expected.store(2, 2, in.data() + 3 * kWidth);  // position 20: row 6
    expected.store(3, 1, in.data() + 5 * kWidth);  // position 5: row 1
    expected.store(1, 0, in.data() + 6 * kWidth);  // position 26: row 8
    EXPECT_EQ(written.blocks(), expected.blocks()) << rig.name;
  }
}

}  // namespace
}  // namespace deepinfer::ops
