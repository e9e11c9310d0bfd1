#include "ops/attention.h"

#include <cmath>

#include <gtest/gtest.h>

#include "golden_json.h"
#include "ops/quantisers.h"
#include "ops/row_blocks.h"

namespace deepinfer::ops {
namespace {

using Values = std::vector<float>;

// Queries with everything they read. `window` and `compressed` hold all rows there are.
struct Problem {
  int64_t heads = 1, dim = 32;
  Values q, window, compressed, sink;
  std::vector<int64_t> window_begin, window_end;
  std::vector<std::vector<int32_t>> selected;

  int64_t num_queries() const { return static_cast<int64_t>(window_begin.size()); }
  int64_t width() const { return heads * dim; }
};

// Rotation of every query: [num_queries, pairs].
struct Angles {
  int64_t pairs = 0;
  Values cosine, sine;
};

Angles random_angles(Random& random, int64_t queries, int64_t pairs) {
  Angles angles{pairs};
  for (const float a : random.normals(queries * pairs, 3)) {
    angles.cosine.push_back(std::cos(a));
    angles.sine.push_back(std::sin(a));
  }
  return angles;
}

// The arguments of queries [begin, end) and what they point at. A window that is cut short by its first row is as long
// as one that is cut by its size.
struct Step {
  std::vector<int64_t> positions, first_rows;
  std::vector<int32_t> selected, num_selected;
  int64_t top_k = 1;

  Step(const Problem& p, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) top_k = std::max(top_k, static_cast<int64_t>(p.selected[i].size()));
    selected.assign((end - begin) * top_k, -7);
    for (int64_t i = begin; i < end; ++i) {
      positions.push_back(p.window_end[i] - 1);
      first_rows.push_back(p.window_begin[i]);
      std::copy(p.selected[i].begin(), p.selected[i].end(), selected.begin() + (i - begin) * top_k);
      num_selected.push_back(static_cast<int32_t>(p.selected[i].size()));
    }
  }
  AttentionArgs args(const Problem& p, const RowBlocks& window, const RowBlocks& compressed) const {
    AttentionArgs a;
    a.positions = positions.data();
    a.window = window.tables();
    a.window_size = 1 << 20;
    a.first_window_row = first_rows.data();
    if (!p.compressed.empty()) a.compressed = compressed.tables();
    a.selected = {selected.data(), static_cast<int64_t>(positions.size()), top_k, top_k};
    a.num_selected = num_selected.data();
    a.sink = p.sink.data();
    a.num_heads = p.heads;
    return a;
  }
};

Values attend(const Problem& p, const RowBlocks& window, const RowBlocks& compressed, bool round,
              const Angles* angles = nullptr) {
  return on_every_rig(p.num_queries(), [&](const Rig& rig, int64_t begin, int64_t end) {
    const Step step(p, begin, end);
    Buffer<float> q(rig, p.width(), rows_of(p.q, p.width(), begin, end));
    Buffer<float> out(rig, end - begin, p.width());
    AttentionArgs args = step.args(p, window, compressed);
    args.out = out.view();
    args.q = q.view();
    args.round_to_bf16 = round;
    if (angles == nullptr) {
      attention(*rig.stream, args);
      return out.values();
    }
    Buffer<float> cosine(rig, angles->pairs, rows_of(angles->cosine, angles->pairs, begin, end));
    Buffer<float> sine(rig, angles->pairs, rows_of(angles->sine, angles->pairs, begin, end));
    args.cosine = cosine.view();
    args.sine = sine.view();
    attention(*rig.stream, args);
    EXPECT_EQ(q.values(), Values(p.q.begin() + begin * p.width(), p.q.begin() + end * p.width())) << "q is not written";
    return out.values();
  });
}

Values attend(const Problem& p, bool round, RowType type = RowType::kF32, int32_t block_shift = 2) {
  const RowBlocks window(type, block_shift, p.dim, p.window), compressed(type, block_shift, p.dim, p.compressed);
  return attend(p, window, compressed, round);
}

// The definition in double precision, without rounding.
std::vector<double> defined(const Problem& p) {
  std::vector<double> out;
  for (int64_t i = 0; i < p.num_queries(); ++i) {
    std::vector<const float*> keys;
    for (int64_t r = p.window_begin[i]; r < p.window_end[i]; ++r) keys.push_back(p.window.data() + r * p.dim);
    for (const int32_t r : p.selected[i]) keys.push_back(p.compressed.data() + r * p.dim);
    for (int64_t h = 0; h < p.heads; ++h) {
      const float* q = p.q.data() + i * p.width() + h * p.dim;
      std::vector<double> scores;
      double largest = p.sink[h];  // any maximum gives the same quotient
      for (const float* key : keys) {
        double dot = 0;
        for (int64_t d = 0; d < p.dim; ++d) dot += static_cast<double>(q[d]) * key[d];
        scores.push_back(dot / std::sqrt(static_cast<double>(p.dim)));
        largest = std::max(largest, scores.back());
      }
      double total = std::exp(p.sink[h] - largest);
      for (const double score : scores) total += std::exp(score - largest);
      for (int64_t d = 0; d < p.dim; ++d) {
        double sum = 0;
        for (size_t k = 0; k < keys.size(); ++k) sum += std::exp(scores[k] - largest) * keys[k][d];
        out.push_back(sum / total);
      }
    }
  }
  return out;
}

Problem random_problem(Random& random, int64_t heads, int64_t dim, int64_t queries, int64_t longest_window,
                       int64_t most_selected) {
  Problem p{heads, dim};
  const int64_t window_rows = longest_window + queries, compressed_rows = most_selected * 2 + 1;
  p.q = random.normals(queries * p.width(), 2.0f);
  p.window = rounded(random.normals(window_rows * dim));
  p.compressed = rounded(random.normals(compressed_rows * dim));
  p.sink = random.normals(heads);
  for (int64_t i = 0; i < queries; ++i) {
    p.window_end.push_back(random.between(1, window_rows));
    p.window_begin.push_back(std::max<int64_t>(0, p.window_end[i] - random.between(1, longest_window)));
    p.selected.emplace_back();
    const int64_t wanted = random.between(0, most_selected);
    for (int64_t r = 0; r < compressed_rows; ++r) {
      if (static_cast<int64_t>(p.selected[i].size()) < wanted && random.bits() % 2)
        p.selected[i].push_back(static_cast<int32_t>(r));
    }
  }
  return p;
}

Problem golden_problem(const GoldenCase& golden) {
  Problem p{golden.integer("num_heads")};
  p.q = golden.floats("q");
  p.dim = static_cast<int64_t>(p.q.size()) / golden.rows("q") / p.heads;
  p.window = golden.floats("window_rows");
  p.compressed = golden.floats("compressed_rows");
  p.sink = golden.floats("sink");
  for (const int32_t row : golden.integers("window_begin")) p.window_begin.push_back(row);
  for (const int32_t row : golden.integers("window_end")) p.window_end.push_back(row);
  p.selected = golden.lists("selected");
  return p;
}

TEST(Attention, gives_the_golden_values) {
  for (const GoldenCase& golden : read_golden_cases("attention")) {
    SCOPED_TRACE(golden.name());
    const Problem p = golden_problem(golden);
    expect_close(attend(p, false), golden.doubles("out"), p.dim);
  }
}

TEST(Attention, rounds_weights_and_results_as_the_golden_values_within_a_step_of_bf16) {
  for (const GoldenCase& golden : read_golden_cases("attention")) {
    SCOPED_TRACE(golden.name());
    const Problem p = golden_problem(golden);
    const Values out = attend(p, true);
    EXPECT_EQ(out, rounded(out));
    expect_close(out, golden.doubles("out_rounded"), p.dim, 0x1p-8);
    // A sum of few rows has few near ties: nearly all results are the very same number.
    const Values expected = golden.floats("out_rounded");
    int64_t same = 0;
    for (size_t i = 0; i < out.size(); ++i) same += out[i] == expected[i];
    const int64_t enough =
        golden.name() == "more_than_one_block_of_keys" ? 0 : static_cast<int64_t>(out.size()) * 98 / 100;
    EXPECT_GE(same, enough);
  }
}

TEST(Attention, is_the_definition_for_any_number_of_heads_channels_and_keys) {
  Random random(1);
  for (const int64_t heads : {1, 2, 3, 7, 8, 9, 15, 17}) {
    for (const int64_t dim : {16, 32, 48, 112}) {
      SCOPED_TRACE(testing::Message() << heads << " heads of " << dim);
      const Problem p = random_problem(random, heads, dim, 4, 20, 10);
      expect_close(attend(p, false), defined(p), dim);
    }
  }
}

TEST(Attention, sees_windows_and_selections_longer_than_a_block_of_64_keys) {
  Random random(2);
  for (const int64_t window : {63, 64, 65, 128, 200}) {
    for (const int64_t selected : {0, 1, 64, 150}) {
      SCOPED_TRACE(testing::Message() << window << " window rows, " << selected << " selected");
      Problem p = random_problem(random, 3, 32, 3, window, selected);
      p.window_begin[0] = 0;
      p.window_end[0] = window;
      expect_close(attend(p, false), defined(p), 32);
    }
  }
}

TEST(Attention, sees_as_many_rows_as_the_window_has_but_none_before_the_first) {
  Random random(3);
  constexpr int64_t kRows = 40, kHeads = 3, kDim = 32;
  Problem p{kHeads, kDim};
  p.window = random.normals(kRows * kDim);
  p.sink = random.normals(kHeads);
  struct Case {
    int64_t position, first, begin;  // with a window of 8
  };
  // A first row above the position is none.
  for (const Case c : {Case{0, 0, 0},
                       {5, 0, 0},
                       {7, 0, 0},
                       {8, 0, 1},
                       {39, 0, 32},
                       {39, 31, 32},
                       {39, 33, 33},
                       {39, 39, 39},
                       {39, 40, 32},
                       {5, 3, 3},
                       {5, 6, 0},
                       {20, 1000, 13}}) {
    SCOPED_TRACE(testing::Message() << "position " << c.position << ", first " << c.first);
    p.window_begin = {c.begin};
    p.window_end = {c.position + 1};
    p.selected = {{}};
    p.q = random.normals(p.width());
    const RowBlocks window(RowType::kF32, 2, kDim, p.window);
    const Values expected = attend(p, window, window, false);
    expect_close(expected, defined(p), kDim);
    for (const bool has_first : {true, false}) {
      if (!has_first && c.first != 0) continue;
      Values out(p.width());
      AttentionArgs args = Step(p, 0, 1).args(p, window, window);
      args.out = dense(out.data(), 1, p.width());
      args.q = dense(p.q.data(), 1, p.width());
      const int32_t none = 0;
      args.positions = &c.position;
      args.first_window_row = has_first ? &c.first : nullptr;
      args.num_selected = &none;
      args.window_size = 8;
      attention(*all_rigs().front().stream, args);
      EXPECT_EQ(first_difference(out, expected), -1);
    }
  }
}

TEST(Attention, of_nothing_is_zero) {
  for (const bool round : {false, true}) {
    Random random(3);
    const Problem p = random_problem(random, 3, 32, 2, 4, 0);
    const RowBlocks window(RowType::kF32, 2, p.dim, p.window);
    const Step step(p, 0, 2);
    Values out(2 * p.width(), 1.0f);
    AttentionArgs args = step.args(p, window, window);
    args.out = dense(out.data(), 2, p.width());
    args.q = dense(p.q.data(), 2, p.width());
    args.window_size = 0;
    args.round_to_bf16 = round;
    attention(*all_rigs().front().stream, args);
    EXPECT_EQ(out, Values(2 * p.width(), 0.0f));
  }
}

Values rotate(const Values& x, const Problem& p, Angles angles, bool inverse, bool round) {
  Values out = x;
  const int64_t rows = p.num_queries(), pairs = angles.pairs;
  rope(*all_rigs().front().stream, {.data = dense(out.data(), rows, p.width()),
                                    .num_heads = p.heads,
                                    .cosine = dense(angles.cosine.data(), rows, pairs),
                                    .sine = dense(angles.sine.data(), rows, pairs),
                                    .inverse = inverse,
                                    .round_to_bf16 = round});
  return out;
}

TEST(Attention, with_angles_gives_the_bits_of_a_rotation_before_and_one_back_after) {
  Random random(9);
  for (const int64_t heads : {1, 3, 8, 13}) {
    for (const int64_t pairs : {1, 8, 24}) {
      Problem p = random_problem(random, heads, 48, 5, 70, 30);
      const Angles angles = random_angles(random, 5, pairs);
      const RowBlocks window(RowType::kF32, 2, p.dim, p.window), compressed(RowType::kF32, 2, p.dim, p.compressed);
      for (const bool round : {false, true}) {
        SCOPED_TRACE(testing::Message() << heads << " heads, " << pairs << " pairs" << (round ? ", rounded" : ""));
        const Values inside = attend(p, window, compressed, round, &angles);
        Problem rotated = p;
        rotated.q = rotate(p.q, p, angles, false, round);
        const Values outside = rotate(attend(rotated, window, compressed, round), p, angles, true, round);
        EXPECT_EQ(first_difference(inside, outside), -1);
      }
    }
  }
}

TEST(Attention, passes_padding_rows_over) {
  Random random(10);
  const Problem p = random_problem(random, 3, 32, 5, 20, 10);
  const RowBlocks window(RowType::kF32, 2, p.dim, p.window), compressed(RowType::kF32, 2, p.dim, p.compressed);
  const Angles angles = random_angles(random, 5, 4);
  const Values expected = attend(p, window, compressed, true, &angles);
  // Rows 1 and 3 become padding, told by the position, the table or both; whatever else they hold leads nowhere.
  for (const bool by_position : {true, false}) {
    Step step(p, 0, 5);
    RowTables tables[2] = {window.tables(), compressed.tables()};
    std::vector<std::byte* const*> blocks[2];
    for (int i = 0; i < 2; ++i) {
      blocks[i].assign(tables[i].blocks, tables[i].blocks + 5);
      blocks[i][1] = blocks[i][3] = nullptr;
      tables[i].blocks = blocks[i].data();
    }
    for (const int row : {1, 3}) {
      step.positions[row] = by_position ? -1 : 1 << 30;
      step.first_rows[row] = -5;
      step.num_selected[row] = 1 << 30;
    }
    for (const Rig& rig : all_rigs()) {
      Buffer<float> q(rig, p.width(), p.q), out(rig, 5, p.width());
      Buffer<float> cosine(rig, 4, angles.cosine), sine(rig, 4, angles.sine);
      AttentionArgs args = step.args(p, window, compressed);
      args.window = tables[0];
      args.compressed = tables[1];
      args.out = out.view();
      args.q = q.view();
      args.cosine = cosine.view();
      args.sine = sine.view();
      args.round_to_bf16 = true;
      attention(*rig.stream, args);
      const Values values = out.values();
      for (const int row : {0, 2, 4}) {
        const auto bits_of_row = [&](const Values& x) {
          return Values(x.begin() + row * p.width(), x.begin() + (row + 1) * p.width());
        };
        EXPECT_EQ(first_difference(bits_of_row(values), bits_of_row(expected)), -1) << rig.name << ", row " << row;
      }
    }
  }
}

TEST(Attention, reads_the_same_numbers_from_bf16_rows_and_from_blocks_of_any_size) {
  Random random(4);
  const Problem p = random_problem(random, 5, 48, 6, 90, 40);
  for (const bool round : {false, true}) {
    const Values expected = attend(p, round);
    for (const int32_t block_shift : {0, 1, 3, 6, 9}) {
      EXPECT_EQ(first_difference(attend(p, round, RowType::kF32, block_shift), expected), -1)
          << "blocks of 2^" << block_shift;
      EXPECT_EQ(first_difference(attend(p, round, RowType::kBf16, block_shift), expected), -1)
          << "bf16, 2^" << block_shift;
    }
  }
}

// Window rows and compressed rows of types of their own.
Values attend_to(const Problem& p, RowType window_type, RowType compressed_type, bool round, int32_t block_shift) {
  const RowBlocks window(window_type, block_shift, p.dim, p.window);
  const RowBlocks compressed(compressed_type, block_shift, p.dim, p.compressed);
  return attend(p, window, compressed, round);
}

TEST(Attention, reads_from_packed_rows_the_numbers_of_their_quantiser) {
  Random random(7);
  for (const int64_t dim : {32, 96, 512}) {
    const Problem p = random_problem(random, 3, dim, 4, 70, 40);
    for (const RowType type : kPackedTypes) {
      SCOPED_TRACE(testing::Message() << "type " << static_cast<int>(type) << ", " << dim << " channels");
      Problem same = p;
      same.compressed = quantised(own_quantiser(type), p.compressed);
      same.window = quantised(FakeQuant::kE4m3Group32, p.window);
      for (const bool round : {false, true}) {
        EXPECT_EQ(first_difference(attend_to(p, RowType::kE4m3Group32, type, round, 3), attend(same, round)), -1);
      }
    }
  }
}

// A query that sees one row gets that row: every code and scales of every size come back as numbers.
TEST(Attention, to_a_single_row_gives_the_row_whatever_its_codes_and_scales) {
  Random random(8);
  for (const RowType type : kPackedTypes) {
    Problem p{.heads = 1, .dim = 640};
    p.window = groups_of_ties(random, own_quantiser(type), static_cast<int>(40 * p.dim / row_group(type)));
    const Values extremes = rows_of_every_magnitude(random, 40, p.dim, -149, 120);
    p.window.insert(p.window.end(), extremes.begin(), extremes.end());
    for (int64_t i = 0; i < 80; ++i) {
      p.window_begin.push_back(i);
      p.window_end.push_back(i + 1);
    }
    p.selected.resize(80);
    p.q.assign(80 * p.dim, 0.0f);
    p.sink = {-1e30f};
    p.compressed = Values(p.dim, 0.0f);
    EXPECT_EQ(attend_to(p, type, RowType::kF32, false, 2), quantised(own_quantiser(type), p.window));
  }
}

TEST(Attention, reads_no_row_beside_the_window_and_the_selection) {
  Random random(5);
  Problem p = random_problem(random, 3, 32, 5, 12, 6);
  p.window_begin = {2, 3, 4, 5, 6};
  p.window_end = {9, 9, 10, 12, 14};
  for (auto& selected : p.selected) selected = {1, 2, 5};
  const Values expected = attend(p, true);
  for (const float junk : {std::nanf(""), 1e30f}) {
    for (int64_t d = 0; d < 32; ++d) {
      for (const int64_t row : {0, 1, 14, 15, 16}) p.window[row * 32 + d] = junk;
      for (const int64_t row : {0, 3, 4, 6, 12}) p.compressed[row * 32 + d] = junk;
    }
    EXPECT_EQ(first_difference(attend(p, true), expected), -1);
  }
}

TEST(Attention, survives_scores_far_beyond_the_range_of_exp) {
  Random random(6);
  Problem p = random_problem(random, 2, 32, 4, 80, 10);
  for (float& value : p.q) value *= 1e4f;
  // Only the order of the scores is left, and one score is far above the others.
  const Values out = attend(p, false);
  const std::vector<double> expected = defined(p);
  for (size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out[i], expected[i], 0.02) << "at " << i;
  p.sink = {1e4f, -1e4f};
  for (float& value : p.q) value *= 1e-4f;
  expect_close(attend(p, false), defined(p), 64, 2e-6);
}

}  // namespace
}  // namespace deepinfer::ops
