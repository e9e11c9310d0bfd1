// Selection alone, through index_select: two heads of width 2 with weights 1 and -1 make a key's first value its score.
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

}  // namespace
}  // namespace deepinfer::cuda_test
