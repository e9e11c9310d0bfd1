#include "ops/compressor.h"

#include <cmath>

#include <gtest/gtest.h>

#include "golden_json.h"
#include "ops/row_blocks.h"

namespace deepinfer::ops {
namespace {

using Values = std::vector<float>;

// values, gates: [groups * ratio, width]. Tokens lie from row `first` on, as those of a sequence do. Returns the rows
// of the tokens that close a group.
Values compress_on_every_rig(const Values& values, const Values& gates, int64_t ratio, int64_t width, bool round,
                             int64_t first = 0, int32_t block_shift = 1) {
  const int64_t tokens = static_cast<int64_t>(values.size()) / width;
  Values rows(first * 2 * width, std::nanf(""));
  for (int64_t t = 0; t < tokens; ++t) {
    rows.insert(rows.end(), values.begin() + t * width, values.begin() + (t + 1) * width);
    rows.insert(rows.end(), gates.begin() + t * width, gates.begin() + (t + 1) * width);
  }
  const RowBlocks table(RowType::kF32, block_shift, 2 * width, rows);
  return on_every_rig(tokens / ratio, [&](const Rig& rig, int64_t begin, int64_t end) {
    std::vector<int64_t> positions;
    for (int64_t g = begin; g < end; ++g) positions.push_back(first + g * ratio + ratio - 1);
    Buffer<float> out(rig, end - begin, width);
    compress(*rig.stream, {out.view(), table.tables(), positions.data(), ratio, round});
    return out.values();
  });
}

TEST(Compress, gives_the_golden_values) {
  for (const GoldenCase& golden : read_golden_cases("compressor")) {
    SCOPED_TRACE(golden.name());
    const Values values = golden.floats("values"), gates = golden.floats("gates");
    const int64_t ratio = golden.integer("ratio"), width = values.size() / golden.rows("values");
    const Values out = compress_on_every_rig(values, gates, ratio, width, false);
    expect_close(out, golden.doubles("out"), width);
    EXPECT_EQ(compress_on_every_rig(values, gates, ratio, width, true), rounded(out));
  }
}

TEST(Compress, is_a_softmax_over_the_tokens_of_each_channel) {
  Random random(1);
  for (const int64_t ratio : {1, 2, 3, 5}) {
    for (const int64_t width : {1, 16, 33}) {
      SCOPED_TRACE(testing::Message() << "ratio " << ratio << ", width " << width);
      const Values values = random.normals(7 * ratio * width), gates = random.normals(7 * ratio * width, 20);
      std::vector<double> expected;
      for (int64_t g = 0; g < 7; ++g) {
        for (int64_t c = 0; c < width; ++c) {
          double largest = -1e30, total = 0, sum = 0;
          for (int64_t i = 0; i < ratio; ++i) largest = std::max<double>(largest, gates[(g * ratio + i) * width + c]);
          for (int64_t i = 0; i < ratio; ++i) {
            const double weight = std::exp(gates[(g * ratio + i) * width + c] - largest);
            total += weight;
            sum += weight * values[(g * ratio + i) * width + c];
          }
          expected.push_back(sum / total);
        }
      }
      const Values out = compress_on_every_rig(values, gates, ratio, width, false);
      expect_close(out, expected, width);
      for (const int64_t first : {ratio, 6 * ratio}) {
        EXPECT_EQ(first_difference(compress_on_every_rig(values, gates, ratio, width, false, first, 3), out), -1)
            << first;
      }
    }
  }
}

TEST(Compress, gives_zeros_to_tokens_that_close_no_group_and_to_padding_rows) {
  Random random(2);
  constexpr int64_t kWidth = 33, kRatio = 3, kTokens = 9;
  const Values values = random.normals(kTokens * kWidth), gates = random.normals(kTokens * kWidth);
  const Values groups = compress_on_every_rig(values, gates, kRatio, kWidth, false);
  Values rows;
  for (int64_t t = 0; t < kTokens; ++t) {
    rows.insert(rows.end(), values.begin() + t * kWidth, values.begin() + (t + 1) * kWidth);
    rows.insert(rows.end(), gates.begin() + t * kWidth, gates.begin() + (t + 1) * kWidth);
  }
  const RowBlocks table(RowType::kF32, 1, 2 * kWidth, rows);
  const std::vector<int64_t> positions = {7, 8, -1, 2, 3, 5, 4, 5};
  std::vector<std::byte* const*> blocks(8, table.tables().blocks[0]);
  blocks[2] = blocks[7] = nullptr;
  RowTables tables = table.tables();
  const std::vector<int> group_of = {-1, 2, -1, 0, -1, 1, -1, -1};
  Values expected;
  for (const int group : group_of) {
    for (int64_t c = 0; c < kWidth; ++c) expected.push_back(group < 0 ? 0.0f : groups[group * kWidth + c]);
  }
  const Values out = on_every_rig(8, [&](const Rig& rig, int64_t begin, int64_t end) {
    Buffer<float> result(rig, end - begin, kWidth);
    tables.blocks = blocks.data() + begin;
    compress(*rig.stream, {result.view(), tables, positions.data() + begin, kRatio, false});
    return result.values();
  });
  EXPECT_EQ(first_difference(out, expected), -1);
}

}  // namespace
}  // namespace deepinfer::ops
