// Selection alone, through index_select: two heads of width 2 with weights 1 and -1 make a key's first value its score.
#include <bit>

#include "backends/cuda/cuda_bench_tools.h"
#include "backends/cuda/indexer_rig.h"

namespace deepinfer::cuda_test {
namespace {

class TopK : public IndexerTest {
 protected:
  TopK() {
    type_ = ops::RowType::kF32;
    heads_ = 3;
    width_ = 2;
    q_type_ = ElementType::kF32;
    offset_ = 0;
  }

  // Scores as given; a NaN is made of an infinite second value and the third head's weight of zero.
  void check(const Floats& scores, const std::string& what) {
    const auto rows = static_cast<int64_t>(scores.size());
    std::vector<float> keys(2 * rows);
    for (int64_t r = 0; r < rows; ++r) {
      keys[2 * r] = std::isnan(scores[r]) ? 0 : scores[r];
      keys[2 * r + 1] = std::isnan(scores[r]) ? INFINITY : 0;
    }
    KeySequence sequence;
    std::vector<std::byte> bytes((rows + 63) / 64 * 64 * 8);
    std::memcpy(bytes.data(), keys.data(), keys.size() * 4);
    sequence.memory = upload(bytes);
    std::vector<std::byte*> table;
    for (int64_t r = 0; r < rows; r += 64) table.push_back(sequence.memory.data() + r * 8);
    sequence.table = upload(table);
    const std::vector<TokenAt> tokens = {{0, rows - 1}, {0, rows * 2 / 3}};
    Floats q, weights;
    for (size_t t = 0; t < tokens.size(); ++t) {
      q.insert(q.end(), {1, 0, -1, 0, 0, 1});
      weights.insert(weights.end(), {1, -1, 0});
    }
    const Selection got = run({std::move(sequence)}, tokens, q, weights);
    for (size_t t = 0; t < tokens.size(); ++t) {
      const int64_t count = tokens[t].position + 1;
      std::vector<double> order(count);
      for (int64_t r = 0; r < count; ++r)
        order[r] = std::isnan(scores[r]) ? -HUGE_VAL : std::max<double>(scores[r], -1e300);
      std::vector<int32_t> want = largest(order, top_k_);
      ASSERT_EQ(got.num_rows[t], static_cast<int64_t>(want.size())) << what;
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_EQ(got.rows[t * top_k_ + i], want[i]) << what << ": token " << t << ", place " << i;
      }
      if (max_blocks_ == 0) continue;
      std::vector<double> blocks((count + candidate_block_ - 1) / candidate_block_, -HUGE_VAL);
      for (int64_t r = 0; r < count; ++r) {
        blocks[r / candidate_block_] = std::max(blocks[r / candidate_block_], order[r]);
      }
      blocks.back() = HUGE_VAL;
      want = largest(blocks, max_blocks_);
      ASSERT_EQ(got.num_candidates[t], static_cast<int64_t>(want.size())) << what;
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_EQ(got.candidates[t * max_blocks_ + i], want[i]) << what << ": token " << t << ", block " << i;
      }
    }
  }

  // Selects from the scores themselves, of `rows` rows of which the last positions may not count; every third has the
  // same scores.
  void check_rows(int64_t rows, int64_t count, int64_t left_out, bool with_maxima,
                  const std::function<float()>& value) {
    constexpr int64_t kOwn = 3, kSelected = 512;
    const std::string what = std::to_string(rows) + " rows of " + std::to_string(count) + " less " +
                             std::to_string(left_out) + (with_maxima ? ", maxima" : "");
    const int64_t visible = count - left_out;
    std::vector<uint32_t> scores(rows * count), maxima(rows * count / 8);
    std::vector<int32_t> want[kOwn];
    for (int64_t r = 0; r < rows; ++r) {
      uint32_t* row = &scores[r * count];
      if (r >= kOwn) {
        std::copy_n(row - kOwn * count, count, row);
      } else {
        std::vector<double> order(visible);
        for (int64_t i = 0; i < count; ++i) {
          const float x = value() + 0.0f;
          const auto bits = std::bit_cast<uint32_t>(x);
          row[i] = i < visible ? bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u) : 0xfffffff0u;
          if (i < visible) order[i] = x;
        }
        want[r] = largest(order, kSelected);
      }
      for (int64_t i = 0; i < visible; ++i) {
        uint32_t& most = maxima[(r * count + i) / 8];
        most = std::max(most, row[i]);
      }
    }
    const OnCard<uint32_t> card_scores = upload(scores), card_maxima = upload(maxima);
    const OnCard<int64_t> last_row = upload(std::vector<int64_t>(rows, visible - 1));
    const OnCard<uint32_t*> tables = upload(std::vector<uint32_t*>(rows, card_scores.data()));
    const OnCard<int32_t> selected = upload(std::vector<int32_t>(rows * kSelected, -7));
    const OnCard<int32_t> num_selected = upload(std::vector<int32_t>(rows, -7));
    cuda::select_largest(stream(), {.scores = card_scores.data(),
                                    .maxima = with_maxima ? card_maxima.data() : nullptr,
                                    .last_row = last_row.data(),
                                    .tables = reinterpret_cast<std::byte* const* const*>(tables.data()),
                                    .rows = rows,
                                    .count = count,
                                    .k = kSelected,
                                    .selected = selected.data(),
                                    .num_selected = num_selected.data()});
    const std::vector<int32_t> got = selected.values(), num = num_selected.values();
    for (int64_t r = 0; r < rows; ++r) {
      const std::vector<int32_t>& wanted = want[r % kOwn];
      ASSERT_EQ(num[r], static_cast<int64_t>(wanted.size())) << what;
      for (size_t i = 0; i < wanted.size(); ++i) {
        ASSERT_EQ(got[r * kSelected + i], wanted[i]) << what << ": row " << r << ", place " << i;
      }
    }
  }

  Floats values_of(int64_t count, const std::function<float(int64_t)>& value) {
    Floats values(count);
    for (int64_t i = 0; i < count; ++i) values[i] = value(i);
    return values;
  }
};

constexpr int64_t kCounts[] = {513, 600, 1024, 1025, 4097, 8192, 16384, 16385, 20001, 131072, 300007};

TEST_F(TopK, FindsTheLargestOfRandomValues) {
  for (const int64_t count : kCounts) check(random_values(count), std::to_string(count));
}

TEST_F(TopK, TakesTheLowerRowsAmongTies) {
  for (const int64_t count : kCounts) {
    const std::string what = std::to_string(count);
    check(values_of(count, [](int64_t) { return 1.5f; }), what + " equal");
    check(values_of(count, [](int64_t i) { return i % 3 == 0 ? -0.0f : 0.0f; }), what + " zeros of both signs");
    check(values_of(count, [&](int64_t) { return static_cast<float>(random()() % 5) - 2; }), what + " of five values");
    check(values_of(count, [](int64_t i) { return i % 1000 == 7 ? 2.0f : -1.0f; }), what + " mostly one value");
    check(values_of(count, [&](int64_t) { return random()() % 300 == 0 ? 1.0f : 0.0f; }), what + " rarely one");
  }
}

TEST_F(TopK, SelectsFromOrderedValues) {
  for (const int64_t count : kCounts) {
    const std::string what = std::to_string(count);
    check(values_of(count, [](int64_t i) { return static_cast<float>(i); }), what + " rising");
    check(values_of(count, [](int64_t i) { return -static_cast<float>(i); }), what + " falling");
    check(values_of(count, [&](int64_t i) { return i > count - 2000 ? static_cast<float>(i % 37) : -5.0f; }),
          what + " at the end");
  }
}

TEST_F(TopK, OrdersInfinitiesAndTakesWhatIsNotANumberLast) {
  for (const int64_t count : {600, 9000, 50000}) {
    const std::string what = std::to_string(count);
    check(values_of(count,
                    [&](int64_t i) {
                      return i % 7 == 0 ? NAN : i % 11 == 0 ? INFINITY * (i % 2 ? 1.0f : -1.0f) : i % 13;
                    }),
          what + " some NaN");
    check(values_of(count, [&](int64_t i) { return i % 200 == 3 ? -INFINITY : NAN; }), what + " mostly NaN");
    check(values_of(count, [&](int64_t) { return NAN; }), what + " all NaN");
  }
}

TEST_F(TopK, SelectsAnyNumber) {
  for (const int64_t k : {1, 7, 511, 1000, 2048, 3000, 6000}) {
    top_k_ = k;
    for (const int64_t count : {5000, 70000}) {
      check(random_values(count), std::to_string(k) + " of " + std::to_string(count));
      check(values_of(count, [](int64_t i) { return static_cast<float>(i % 50); }),
            std::to_string(k) + " of ties among " + std::to_string(count));
    }
  }
}

TEST_F(TopK, KeepsTheBestBlocksAndTheNewest) {
  for (const int64_t blocks : {1, 20, 2048}) {
    max_blocks_ = blocks;
    for (const int64_t count : {530, 9001, 150000}) {
      const std::string what = std::to_string(blocks) + " blocks of " + std::to_string(count) + " rows";
      check(random_values(count), what);
      check(values_of(count, [](int64_t i) { return -static_cast<float>(i / 100); }), what + ", falling");
      check(values_of(count, [](int64_t) { return 3.0f; }), what + ", equal");
    }
  }
}

// Each case once: small enough to run under tools that watch every access.
TEST_F(TopK, SharesARowAmongSeveralBlocks) {
  max_blocks_ = 20;
  for (const int64_t count : {9001, 17001, 33001}) check(random_values(count), std::to_string(count) + " rows");
}

TEST_F(TopK, SelectsTheSameForAnyNumberOfRows) {
  std::normal_distribution<float> normal;
  for (const bool with_maxima : {false, true}) {
    for (const int64_t rows : {1, 7, 30, 64, 140, 270}) {
      for (const int64_t count : {8192, 16640, 66048, 131072}) {
        if (rows * count > int64_t{140} << 16) continue;
        check_rows(rows, count, 0, with_maxima, [&] { return normal(random()); });
        check_rows(rows, count, count / 3 + 5, with_maxima, [&] { return normal(random()) - 2; });
        check_rows(rows, count, 11, with_maxima, [&] { return static_cast<float>(random()() % 5) - 2; });
      }
    }
  }
}

TEST_F(TopK, SelectsFromShortRowsAmongLongOnes) {
  std::normal_distribution<float> normal;
  for (const bool with_maxima : {false, true}) {
    for (const int64_t visible : {1, 511, 512, 513, 1000, 3001, 4097, 9000, 20011}) {
      for (const int64_t rows : {2, 30, 140}) {
        check_rows(rows, 40960, 40960 - visible, with_maxima, [&] { return normal(random()); });
      }
    }
  }
}

TEST_F(TopK, SelectsFromValuesOfManySizes) {
  std::normal_distribution<float> normal;
  for (const int64_t rows : {1, 30, 140}) {
    for (const int64_t count : {8192, 40960, 65536}) {
      check_rows(rows, count, 3, false, [&] { return std::exp2(normal(random()) * 30); });
      check_rows(rows, count, 3, true, [&] { return normal(random()) * std::exp2(normal(random()) * 20); });
    }
  }
}

// Small enough to run under tools that watch every access.
TEST_F(TopK, ReadsLongRowsInRounds) {
  std::normal_distribution<float> normal;
  for (const bool with_maxima : {false, true}) {
    check_rows(2, 33024, 7, with_maxima, [&] { return normal(random()); });
    check_rows(140, 40960, 7, with_maxima, [&] { return normal(random()); });
    check_rows(1, 200000, 7, with_maxima, [&] { return normal(random()); });
  }
}

}  // namespace
}  // namespace deepinfer::cuda_test
