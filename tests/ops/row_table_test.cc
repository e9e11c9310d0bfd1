// Rows as they are stored: their size, their bytes, and what `write_rows` makes of values for every type.
#include "ops/row_table.h"

#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "golden_json.h"
#include "ops/quantisers.h"

namespace deepinfer::ops {
namespace {

using Values = std::vector<float>;
using Bytes = std::vector<int32_t>;  // as numbers, which on_every_rig compares

struct Angles {
  int64_t pairs = 0;
  bool round = false;
  Values cosine, sine;  // [rows, pairs]
};

// The rows, one after the other, after `write_rows` on every rig.
Bytes stored(RowType type, const Values& x, int64_t width, std::optional<FakeQuant> quantise = std::nullopt,
             const Angles& angles = {}) {
  return on_every_rig(x.size() / width, [&](const Rig& rig, int64_t begin, int64_t end) {
    std::vector<std::byte> memory((end - begin) * row_bytes(type, width), std::byte{0x5A});
    std::byte* const block = memory.data();
    std::byte* const* const blocks = &block;
    const std::vector<std::byte* const*> tables(end - begin, blocks);
    std::vector<int64_t> positions(end - begin);
    std::iota(positions.begin(), positions.end(), 0);
    Buffer<float> in(rig, width, rows_of(x, width, begin, end));
    WriteRowsArgs args{.in = in.view(),
                       .tables = {tables.data(), 20, type, width},
                       .positions = positions.data(),
                       .quantise = quantise};
    if (angles.pairs == 0) {
      write_rows(*rig.stream, args);
    } else {
      Buffer<float> cosine(rig, angles.pairs, rows_of(angles.cosine, angles.pairs, begin, end));
      Buffer<float> sine(rig, angles.pairs, rows_of(angles.sine, angles.pairs, begin, end));
      args.cosine = cosine.view();
      args.sine = sine.view();
      args.round_to_bf16 = angles.round;
      write_rows(*rig.stream, args);
    }
    EXPECT_EQ(in.values(), Values(x.begin() + begin * width, x.begin() + end * width)) << "the input is not written";
    Bytes bytes;
    for (const std::byte byte : memory) bytes.push_back(static_cast<int32_t>(byte));
    return bytes;
  });
}

Values read_back(RowType type, const Bytes& bytes, int64_t width) {
  std::vector<std::byte> memory;
  for (const int32_t byte : bytes) memory.push_back(static_cast<std::byte>(byte));
  Values values;
  for (size_t at = 0; at < memory.size(); at += row_bytes(type, width)) {
    const Values row = unpacked(type, memory.data() + at, width);
    values.insert(values.end(), row.begin(), row.end());
  }
  return values;
}

TEST(RowTable, rows_are_as_long_as_documented) {
  EXPECT_EQ(row_bytes(RowType::kF32, 512), 2048);
  EXPECT_EQ(row_bytes(RowType::kBf16, 512), 1024);
  EXPECT_EQ(row_bytes(RowType::kE4m3Group32, 512), 528);
  EXPECT_EQ(row_bytes(RowType::kE2m1Group16, 512), 288);
  EXPECT_EQ(row_bytes(RowType::kE4m3Group32, 128), 132);
  EXPECT_EQ(row_bytes(RowType::kE2m1Group32, 128), 68);
}

TEST(PackedRows, have_the_bytes_of_a_row_worked_out_by_hand) {
  Values tenths(16), line(32);
  for (int i = 0; i < 16; ++i) tenths[i] = round_to_bfloat16(0.1f * (i - 7.5f));
  for (int i = 0; i < 32; ++i) line[i] = round_to_bfloat16(-3.0f + 6.0f * i / 31.0f);
  // -6 -6 -4 -4 -3 -2 -1 -0.5 and the mirror image, times 2^-3.
  EXPECT_EQ(stored(RowType::kE2m1Group16, tenths, 16), (Bytes{0xFF, 0xEE, 0xCD, 0x9A, 0x21, 0x54, 0x66, 0x77, 0x20}));
  // -384 -352 -320 -320 and so on, times 2^-7.
  const Bytes fp8 = stored(RowType::kE4m3Group32, line, 32);
  EXPECT_EQ(Bytes(fp8.begin(), fp8.begin() + 4), (Bytes{0xFC, 0xFB, 0xFA, 0xFA}));
  EXPECT_EQ(fp8.at(32), 127 - 7);
  // -6 -6 -6 -4 and so on, times 2^-1.
  const Bytes fp4 = stored(RowType::kE2m1Group32, line, 32);
  EXPECT_EQ(Bytes(fp4.begin(), fp4.begin() + 2), (Bytes{0xFF, 0xEF}));
  EXPECT_EQ(fp4.at(16), 127 - 1);
}

TEST(PackedRows, hold_the_golden_values_of_their_quantiser) {
  const std::vector<GoldenCase> cases = read_golden_cases("quantisers");
  ASSERT_EQ(cases.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const Values x = cases[i].floats("x");
    const int64_t width = static_cast<int64_t>(x.size()) / cases[i].rows("x");
    EXPECT_EQ(read_back(kPackedTypes[i], stored(kPackedTypes[i], x, width), width), cases[i].floats("out"));
  }
}

TEST(PackedRows, hold_the_quantiser_s_values_bit_by_bit_for_values_of_every_magnitude) {
  Random random(1);
  for (const RowType type : kPackedTypes) {
    const FakeQuant kind = own_quantiser(type);
    for (const int64_t width : {32, 64, 96, 288, 512}) {
      SCOPED_TRACE(testing::Message() << "type " << static_cast<int>(type) << ", width " << width);
      const Values x = rows_of_every_magnitude(random, 40, width, -149, 120);
      const Bytes bytes = stored(type, x, width);
      EXPECT_EQ(first_difference(read_back(type, bytes, width), quantised(kind, x)), -1);
      EXPECT_EQ(stored(type, x, width, kind), bytes) << "asked for or not";
    }
    const int64_t width = 8 * row_group(type);
    const Values ties = groups_of_ties(random, kind, 600);
    EXPECT_EQ(first_difference(read_back(type, stored(type, ties, width), width), quantised(kind, ties)), -1);
  }
}

TEST(PackedRows, hold_the_quantiser_s_values_bit_by_bit_at_the_ends_of_its_range) {
  constexpr float kMax = std::numeric_limits<float>::max(), kMin = std::numeric_limits<float>::denorm_min();
  // The second makes the largest scale; the others: zeros of both signs, below every floor, at the floors.
  for (const float top : {kMax, 0.99f * kMax, 0.0f, -0.0f, kMin, -kMin, 1e-38f, 6 * 0x1p-126f, 1e-4f, 6 * 0x1p-9f,
                          2688.0f, 2689.0f, 1e30f, -kMax}) {
    Values x(64);
    for (int i = 0; i < 64; ++i) x[i] = top * (i % 3 == 0 ? 1.0f : -0.5f) / static_cast<float>(1 << (i % 13));
    for (const RowType type : kPackedTypes) {
      const Values values = read_back(type, stored(type, x, 64), 64);
      EXPECT_EQ(first_difference(values, quantised(own_quantiser(type), x)), -1)
          << top << " as " << static_cast<int>(type);
      for (const float value : values) EXPECT_FALSE(std::isnan(value)) << top;
    }
  }
}

// Quantising a second time, a small E4M3 scale comes out smaller and clips: codes have to come from the values before.
TEST(PackedRows, take_codes_from_values_that_were_not_quantised_before) {
  Values x(16, 0x1p-8f);
  x[3] = 9.1f * 0x1p-9f;
  const Values once = quantised(FakeQuant::kE2m1Group16, x);
  ASSERT_NE(quantised(FakeQuant::kE2m1Group16, once), once);
  EXPECT_EQ(read_back(RowType::kE2m1Group16, stored(RowType::kE2m1Group16, x, 16), 16), once);
}

TEST(WriteRows, stores_the_values_of_a_quantiser_in_rows_of_every_other_type) {
  Random random(2);
  constexpr int64_t kWidth = 96;
  const Values x = rows_of_every_magnitude(random, 60, kWidth, -20, 20);
  for (const FakeQuant kind : kKinds) {
    for (const RowType type :
         {RowType::kF32, RowType::kBf16, RowType::kE4m3Group32, RowType::kE2m1Group16, RowType::kE2m1Group32}) {
      if (row_group(type) > 1 && own_quantiser(type) == kind) continue;  // those keep x's own codes, see above
      EXPECT_EQ(stored(type, x, kWidth, kind), stored(type, quantised(kind, x), kWidth))
          << "quantiser " << static_cast<int>(kind) << ", type " << static_cast<int>(type);
    }
  }
}

TEST(WriteRows, with_angles_stores_what_a_rotation_before_makes_of_the_row) {
  Random random(3);
  constexpr int64_t kWidth = 96, kRows = 20;
  const Values x = random.normals(kRows * kWidth);
  for (const int64_t pairs : {1, 8, 48}) {
    for (const bool round : {false, true}) {
      Angles angles{pairs, round};
      for (const float a : random.normals(kRows * pairs, 3)) {
        angles.cosine.push_back(std::cos(a));
        angles.sine.push_back(std::sin(a));
      }
      Values rotated = x;
      rope(*all_rigs().front().stream, {.data = dense(rotated.data(), kRows, kWidth),
                                        .cosine = dense(angles.cosine.data(), kRows, pairs),
                                        .sine = dense(angles.sine.data(), kRows, pairs),
                                        .round_to_bf16 = round});
      for (const RowType type :
           {RowType::kF32, RowType::kBf16, RowType::kE4m3Group32, RowType::kE2m1Group16, RowType::kE2m1Group32}) {
        for (const std::optional<FakeQuant> kind :
             {std::optional<FakeQuant>(), std::optional(FakeQuant::kE4m3Group32),
              std::optional(FakeQuant::kE2m1Group16), std::optional(FakeQuant::kE2m1Group32)}) {
          EXPECT_EQ(stored(type, x, kWidth, kind, angles), stored(type, rotated, kWidth, kind))
              << pairs << " pairs, type " << static_cast<int>(type);
        }
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer::ops
