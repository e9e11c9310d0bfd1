#include "ops/indexer.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "golden_json.h"
#include "ops/quantisers.h"
#include "ops/row_blocks.h"

namespace deepinfer::ops {
namespace {

using Values = std::vector<float>;
using Rows = std::vector<int32_t>;

struct Problem {
  int64_t heads = 1, dim = 1, top_k = 1;
  Values q, keys, head_weights;
  Rows visible;  // a query
  int64_t block = 0, most_blocks = 0;

  int64_t num_queries() const { return static_cast<int64_t>(visible.size()); }
};

struct Selection {
  std::vector<Rows> rows, blocks;
};

constexpr int32_t kUnused = -7;

// One flat list a query: the number of rows, the rows, the number of blocks, the blocks, up to their capacity.
Rows select(const Problem& p, const Rig& rig, int64_t begin, int64_t end, bool build,
            const std::vector<Rows>* restricted_to, const RowTables& keys, int64_t ratio) {
  const int64_t count = end - begin, block_room = std::max<int64_t>(1, p.most_blocks);
  std::vector<int64_t> positions;  // the last at which so many rows are visible
  for (int64_t i = begin; i < end; ++i) positions.push_back((p.visible[i] + 1) * ratio - 2);
  Buffer<float> q(rig, p.heads * p.dim, rows_of(p.q, p.heads * p.dim, begin, end));
  Buffer<float> weights(rig, p.heads, rows_of(p.head_weights, p.heads, begin, end));
  const Rows unused(count * std::max(p.top_k, block_room), kUnused);
  Buffer<int32_t> selected(rig, p.top_k, rows_of(unused, p.top_k, 0, count));
  Buffer<int32_t> candidates(rig, block_room, rows_of(unused, block_room, 0, count));
  Rows num_selected(count, kUnused), num_candidates(count, kUnused);
  if (restricted_to) {
    for (int64_t i = 0; i < count; ++i) {
      const Rows& list = (*restricted_to)[begin + i];
      std::copy(list.begin(), list.end(), candidates.view().row(i));
      num_candidates[i] = static_cast<int32_t>(list.size());
    }
  }
  IndexSelectArgs args{.selected = selected.view(),
                       .num_selected = num_selected.data(),
                       .q = q.view(),
                       .head_weights = weights.view(),
                       .keys = keys,
                       .positions = positions.data(),
                       .ratio = ratio,
                       .max_visible = *std::max_element(p.visible.begin(), p.visible.end()),
                       .num_heads = p.heads,
                       .top_k = p.top_k};
  if (build || restricted_to) {
    args.candidate_block = p.block;
    args.build_candidates = build;
    args.candidates = candidates.view();
    args.num_candidates = num_candidates.data();
  }
  index_select(*rig.stream, args);
  const Rows rows = selected.values(), blocks = candidates.values();
  Rows out;
  for (int64_t i = 0; i < count; ++i) {
    out.push_back(num_selected[i]);
    for (int64_t j = 0; j < p.top_k; ++j) out.push_back(j < num_selected[i] ? rows[i * p.top_k + j] : kUnused);
    out.push_back(num_candidates[i]);
    for (int64_t j = 0; j < block_room; ++j)
      out.push_back(j < num_candidates[i] ? blocks[i * block_room + j] : kUnused);
  }
  return out;
}

Selection select_on_every_rig(const Problem& p, bool build, const std::vector<Rows>* restricted_to = nullptr,
                              RowType type = RowType::kF32, int32_t block_shift = 2, int64_t ratio = 1) {
  const RowBlocks keys(type, block_shift, p.dim, p.keys);
  const Rows flat = on_every_rig(p.num_queries(), [&](const Rig& rig, int64_t begin, int64_t end) {
    return select(p, rig, begin, end, build, restricted_to, keys.tables(), ratio);
  });
  Selection selection;
  const int64_t block_room = std::max<int64_t>(1, p.most_blocks);
  for (auto at = flat.begin(); at != flat.end(); at += 2 + p.top_k + block_room) {
    selection.rows.emplace_back(at + 1, at + 1 + *at);
    const auto blocks = at + 1 + p.top_k;
    selection.blocks.emplace_back(blocks + 1, blocks + 1 + std::max(0, *blocks));
  }
  return selection;
}

// The positions of the `count` best of scores[within], better first by score, then by the lower position; ascending.
Rows best(const std::vector<double>& scores, Rows within, int64_t count) {
  std::stable_sort(within.begin(), within.end(), [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
  within.resize(std::min<size_t>(within.size(), count));
  std::sort(within.begin(), within.end());
  return within;
}

Rows first_numbers(int64_t count) {
  Rows numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

std::vector<double> scores_of(const Problem& p, int64_t query) {
  std::vector<double> scores;
  for (int32_t g = 0; g < p.visible[query]; ++g) {
    double score = 0;
    for (int64_t h = 0; h < p.heads; ++h) {
      double dot = 0;
      for (int64_t d = 0; d < p.dim; ++d) {
        dot += static_cast<double>(p.q[(query * p.heads + h) * p.dim + d]) * p.keys[g * p.dim + d];
      }
      score += std::max(dot, 0.0) * p.head_weights[query * p.heads + h];
    }
    scores.push_back(score);
  }
  return scores;
}

Rows best_blocks(const Problem& p, const std::vector<double>& scores) {
  const int64_t visible = static_cast<int64_t>(scores.size()), num_blocks = (visible + p.block - 1) / p.block;
  std::vector<double> block_scores;
  for (int64_t b = 0; b < num_blocks; ++b) {
    block_scores.push_back(
        *std::max_element(scores.begin() + b * p.block, scores.begin() + std::min(visible, (b + 1) * p.block)));
  }
  if (num_blocks > 0) block_scores.back() = 1e300;
  return best(block_scores, first_numbers(num_blocks), p.most_blocks);
}

Rows rows_in(const Rows& blocks, int64_t block, int64_t visible) {
  Rows rows;
  for (const int32_t b : blocks) {
    for (int64_t r = b * block; r < std::min(visible, (b + 1) * block); ++r) rows.push_back(static_cast<int32_t>(r));
  }
  return rows;
}

// Small whole numbers: every score is exact in fp32 and ties are many.
Problem random_problem(Random& random) {
  Problem p;
  p.heads = random.between(1, 35);
  p.dim = random.between(1, 40);
  p.top_k = random.between(1, 12);
  p.block = random.between(1, 9);
  p.most_blocks = random.between(1, 6);
  const int64_t rows = random.bits() % 8 == 0 ? random.between(500, 1100) : random.between(0, 80),
                queries = random.between(1, 6);
  const auto small = [&](int64_t count) {
    Values values(count);
    for (float& value : values) value = static_cast<float>(random.between(-2, 2));
    return values;
  };
  p.q = small(queries * p.heads * p.dim);
  p.keys = small(rows * p.dim);
  p.head_weights = small(queries * p.heads);
  for (int64_t i = 0; i < queries; ++i) p.visible.push_back(static_cast<int32_t>(random.between(0, rows)));
  p.visible.back() = static_cast<int32_t>(rows);
  return p;
}

TEST(IndexSelect, gives_the_golden_rows_and_blocks) {
  for (const GoldenCase& golden : read_golden_cases("indexer")) {
    SCOPED_TRACE(golden.name());
    Problem p;
    p.heads = golden.integer("num_heads");
    p.top_k = golden.integer("top_k");
    p.q = golden.floats("q");
    p.keys = golden.floats("keys");
    p.dim = static_cast<int64_t>(p.keys.size()) / golden.rows("keys");
    p.head_weights = golden.floats("head_weights");
    p.visible = golden.integers("num_visible");
    p.block = golden.integer("candidate_block");
    p.most_blocks = golden.integer("candidate_topk_blocks");
    const Selection source = select_on_every_rig(p, true);
    EXPECT_EQ(source.rows, golden.lists("selected"));
    EXPECT_EQ(source.blocks, golden.lists("candidate_blocks"));
    EXPECT_EQ(select_on_every_rig(p, false).rows, golden.lists("selected"));
    EXPECT_EQ(select_on_every_rig(p, false, &source.blocks).rows, golden.lists("selected_within_candidates"));
  }
}

TEST(IndexSelect, is_a_sort_by_score_with_ties_to_the_lower_row) {
  Random random(1);
  for (int round = 0; round < 40; ++round) {
    const Problem p = random_problem(random);
    SCOPED_TRACE(testing::Message() << "round " << round << ": " << p.heads << " heads of " << p.dim << ", top "
                                    << p.top_k << ", " << p.visible.back() << " rows, " << p.most_blocks
                                    << " blocks of " << p.block);
    const Selection plain = select_on_every_rig(p, false), source = select_on_every_rig(p, true);
    const Selection restricted = select_on_every_rig(p, false, &source.blocks);
    const Selection narrow = select_on_every_rig(p, true, nullptr, RowType::kBf16, round % 7, round % 5 + 1);
    for (int64_t i = 0; i < p.num_queries(); ++i) {
      const std::vector<double> scores = scores_of(p, i);
      const Rows all = first_numbers(p.visible[i]);
      ASSERT_EQ(plain.rows[i], best(scores, all, p.top_k));
      ASSERT_EQ(source.rows[i], plain.rows[i]) << "a candidate source is not restricted by its own candidates";
      ASSERT_EQ(source.blocks[i], best_blocks(p, scores));
      ASSERT_EQ(restricted.rows[i], best(scores, rows_in(source.blocks[i], p.block, p.visible[i]), p.top_k));
      ASSERT_EQ(narrow.rows[i], plain.rows[i]) << "keys in BF16";
      ASSERT_EQ(narrow.blocks[i], source.blocks[i]) << "keys in BF16";
    }
  }
}

TEST(IndexSelect, reads_from_packed_keys_the_numbers_of_their_quantiser) {
  Random random(2);
  for (const RowType type : {RowType::kE2m1Group32, RowType::kE4m3Group32}) {
    for (const int64_t dim : {32, 96, 128}) {
      // Scores lie close together, so that a key that was read wrongly changes the order.
      Problem p{.heads = 20, .dim = dim, .top_k = 40, .block = 8, .most_blocks = 6};
      p.q = random.normals(2 * p.heads * dim);
      p.head_weights = random.normals(2 * p.heads);
      p.keys = random.normals(200 * dim, 0.01f);
      p.visible = {150, 200};
      Problem same = p;
      same.keys = quantised(own_quantiser(type), p.keys);
      const Selection packed = select_on_every_rig(p, true, nullptr, type, 4);
      const Selection plain = select_on_every_rig(same, true);
      EXPECT_EQ(packed.rows, plain.rows);
      EXPECT_EQ(packed.blocks, plain.blocks);
    }
  }
}

TEST(IndexSelect, keeps_the_newest_block_however_bad_and_however_short) {
  // Scores fall with the row, so the newest block would be the last to be kept.
  Problem p{.heads = 1,
            .dim = 1,
            .top_k = 2,
            .q = {1, 1, 1, 1},
            .keys = {},
            .head_weights = {1, 1, 1, 1},
            .visible = {16, 17, 20, 4},
            .block = 4,
            .most_blocks = 2};
  for (int i = 0; i < 20; ++i) p.keys.push_back(static_cast<float>(100 - i));
  const Selection source = select_on_every_rig(p, true);
  EXPECT_EQ(source.blocks, (std::vector<Rows>{{0, 3}, {0, 4}, {0, 4}, {0}}));
  // Of a list whose newest block is partly visible only the visible rows count.
  p.top_k = 8;
  EXPECT_EQ(
      select_on_every_rig(p, false, &source.blocks).rows,
      (std::vector<Rows>{{0, 1, 2, 3, 12, 13, 14, 15}, {0, 1, 2, 3, 16}, {0, 1, 2, 3, 16, 17, 18, 19}, {0, 1, 2, 3}}));
}

TEST(IndexSelect, treats_zeros_of_both_signs_as_a_tie) {
  // relu(-1) * 1 = 0 and relu(-1) * -1 = -0.
  Problem p{
      .heads = 2, .dim = 1, .top_k = 2, .q = {1, 1}, .keys = {-1, -1, -1}, .head_weights = {1, -1}, .visible = {3}};
  EXPECT_EQ(select_on_every_rig(p, false).rows, (std::vector<Rows>{{0, 1}}));
  p.head_weights = {-1, -1};
  p.keys = {-1, 1, -1, -1};
  p.visible = {4};
  EXPECT_EQ(select_on_every_rig(p, false).rows, (std::vector<Rows>{{0, 2}})) << "a negative score is below zero";
}

TEST(IndexSelect, sees_the_groups_that_are_closed_at_the_position) {
  // Equal scores: all visible rows are chosen.
  constexpr int64_t kTopK = 8;
  const Values keys(20, 1.0f), q(1, 1.0f), weight(1, 1.0f);
  const RowBlocks table(RowType::kF32, 2, 1, keys);
  for (const int64_t ratio : {1, 2, 3, 4}) {
    for (int64_t position = 0; position < kTopK * ratio; ++position) {
      Rows selected(kTopK, kUnused), num_selected(1, kUnused);
      index_select(*all_rigs().front().stream, {.selected = dense(selected.data(), 1, kTopK),
                                                .num_selected = num_selected.data(),
                                                .q = dense(q.data(), 1, 1),
                                                .head_weights = dense(weight.data(), 1, 1),
                                                .keys = table.tables(),
                                                .positions = &position,
                                                .ratio = ratio,
                                                .max_visible = 20,
                                                .num_heads = 1,
                                                .top_k = kTopK});
      EXPECT_EQ(num_selected[0], (position + 1) / ratio) << "position " << position << ", groups of " << ratio;
    }
  }
}

TEST(IndexSelect, selects_nothing_for_padding_rows_and_the_same_for_the_others) {
  Random random(3);
  Problem p{.heads = 5, .dim = 8, .top_k = 6, .block = 4, .most_blocks = 3};
  p.q = random.normals(5 * p.heads * p.dim);
  p.head_weights = random.normals(5 * p.heads);
  p.keys = random.normals(60 * p.dim);
  p.visible = {10, 60, 33, 47, 4};
  const Selection expected = select_on_every_rig(p, true);
  const RowBlocks keys(RowType::kF32, 2, p.dim, p.keys);
  const Selection restricted = select_on_every_rig(p, false, &expected.blocks);
  std::vector<std::byte* const*> blocks(5, keys.tables().blocks[0]);
  blocks[1] = nullptr;  // a padding row by its table; the fourth is one by its position
  RowTables tables = keys.tables();
  tables.blocks = blocks.data();
  const std::vector<int64_t> positions = {9, 59, 32, -1, 3};
  for (const Rig& rig : all_rigs()) {
    for (const bool build : {true, false}) {
      Buffer<float> q(rig, p.heads * p.dim, p.q), weights(rig, p.heads, p.head_weights);
      Buffer<int32_t> selected(rig, 5, p.top_k), candidates(rig, 5, p.most_blocks);
      Rows num_selected(5, kUnused), num_candidates(5, kUnused);
      for (int i = 0; i < 5 && !build; ++i) {
        const Rows& list = expected.blocks[i];
        std::copy(list.begin(), list.end(), candidates.view().row(i));
        num_candidates[i] = i == 1 || i == 3 ? 1 << 20 : static_cast<int32_t>(list.size());
      }
      index_select(*rig.stream, {.selected = selected.view(),
                                 .num_selected = num_selected.data(),
                                 .q = q.view(),
                                 .head_weights = weights.view(),
                                 .keys = tables,
                                 .positions = positions.data(),
                                 .max_visible = 60,
                                 .num_heads = p.heads,
                                 .top_k = p.top_k,
                                 .candidate_block = p.block,
                                 .build_candidates = build,
                                 .candidates = candidates.view(),
                                 .num_candidates = num_candidates.data()});
      for (const int i : {0, 1, 2, 3, 4}) {
        const bool padding = i == 1 || i == 3;
        const Rows rows(selected.view().row(i), selected.view().row(i) + std::min<int64_t>(num_selected[i], p.top_k));
        EXPECT_EQ(rows, padding ? Rows() : (build ? expected : restricted).rows[i]) << rig.name << ", row " << i;
        if (!build) continue;
        EXPECT_EQ(num_candidates[i], padding ? 0 : static_cast<int32_t>(expected.blocks[i].size()));
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer::ops
