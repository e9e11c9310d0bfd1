#include "model/step_graphs.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(StepGraphs, rows_are_padded_to_the_next_of_few_sizes) {
  std::vector<int64_t> sizes;
  for (int64_t rows = 1; rows <= 1024; ++rows) {
    const int64_t bucket = row_bucket(rows);
    ASSERT_GE(bucket, rows);
    ASSERT_EQ(row_bucket(bucket), bucket);
    if (sizes.empty() || sizes.back() != bucket) sizes.push_back(bucket);
  }
  EXPECT_EQ(sizes, (std::vector<int64_t>{1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024}));
}

TEST(StepGraphs, lengths_are_powers_of_two_from_1024_on) {
  EXPECT_EQ(length_bucket(1), 1024);
  EXPECT_EQ(length_bucket(1024), 1024);
  EXPECT_EQ(length_bucket(1025), 2048);
  EXPECT_EQ(length_bucket(1000000), 1048576);
}

// Counts what happens to it.
class CountingStream final : public Stream {
 public:
  CountingStream() : Stream(nullptr) {}
  void copy(void*, const void*, int64_t) override {}
  Status synchronize() override { return Status(); }
  bool can_record() const override { return true; }
  void begin_recording() override { recording = true; }
  std::unique_ptr<Graph> end_recording() override {
    recording = false;
    ++recorded;
    return std::make_unique<Graph>();
  }
  void launch(Graph&) override { ++launched; }

  bool recording = false;
  int recorded = 0, launched = 0;
};

TEST(StepGraphs, a_shape_runs_once_then_is_recorded_then_only_launched_until_memory_moves) {
  CountingStream stream;
  StepGraphs graphs;
  int ran = 0, bodies = 0;
  const auto step = [&](int64_t rows, int64_t generation) {
    return graphs.run(stream, {rows, 1024}, generation, [&] {
      ++bodies;
      ran += !stream.recording;
      return Status();
    });
  };
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(step(4, 7).ok());
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(bodies, 2);
  EXPECT_EQ(stream.recorded, 1);
  EXPECT_EQ(stream.launched, 4);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(step(8, 7).ok());
  EXPECT_EQ(ran, 2);
  EXPECT_EQ(stream.recorded, 2);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(step(4, 8).ok());
  EXPECT_EQ(ran, 3);
  EXPECT_EQ(stream.recorded, 3);
}

TEST(StepGraphs, a_step_that_fails_is_not_kept) {
  CountingStream stream;
  StepGraphs graphs;
  const auto step = [&](bool good) {
    return graphs.run(stream, {1, 1024}, 1, [&] { return good ? Status() : invalid_input("row {}", 3); });
  };
  EXPECT_FALSE(step(false).ok());
  EXPECT_TRUE(step(true).ok());
  EXPECT_FALSE(step(false).ok());
  EXPECT_EQ(stream.launched, 0);
  EXPECT_TRUE(step(true).ok());
  EXPECT_EQ(stream.launched, 1);
}

}  // namespace
}  // namespace deepinfer
