#include "checkpoint/row_cache.h"

#include <array>
#include <random>
#include <set>

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

constexpr int64_t kRowBytes = 12;

std::array<std::byte, kRowBytes> row_bytes(int64_t row) {
  std::array<std::byte, kRowBytes> out{};
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(row * 31 + static_cast<int64_t>(i));
  return out;
}

TEST(RowCache, GivesBackWhatWasPutInAndNothingElse) {
  for (const int64_t capacity : {1, 2, 3, 63, 64, 65, 127, 128, 1000, 5000}) {
    RowCache cache(capacity, kRowBytes);
    std::mt19937_64 random(static_cast<uint64_t>(capacity));
    std::set<int64_t> inserted;
    for (int step = 0; step < 20000; ++step) {
      const auto row = static_cast<int64_t>(random() % (2 * capacity + 5)) * (step % 3 ? 1 : 1'000'003);
      std::array<std::byte, kRowBytes> got{};
      if (cache.read(row, got.data())) {
        ASSERT_TRUE(inserted.contains(row));
        ASSERT_EQ(got, row_bytes(row));
      } else {
        cache.insert(row, row_bytes(row).data());
        inserted.insert(row);
        ASSERT_TRUE(cache.contains(row));
      }
    }
  }
}

TEST(RowCache, HoldsExactlyItsCapacity) {
  for (const int64_t capacity : {1, 7, 64, 100, 1000, 4097}) {
    RowCache cache(capacity, kRowBytes);
    for (int64_t row = 0; row < 40 * capacity; ++row) cache.insert(row, row_bytes(row).data());
    int64_t held = 0;
    for (int64_t row = 0; row < 40 * capacity; ++row) held += cache.contains(row);
    EXPECT_EQ(held, capacity);
  }
}

TEST(RowCache, KeepsRowsInUseWhileOthersPassThrough) {
  RowCache cache(100, kRowBytes);
  std::array<std::byte, kRowBytes> got{};
  for (int64_t hot = 0; hot < 20; ++hot) cache.insert(hot, row_bytes(hot).data());
  int64_t hot_hits = 0;
  for (int64_t passing = 1000; passing < 6000; ++passing) {
    cache.insert(passing, row_bytes(passing).data());
    hot_hits += cache.read(passing % 20, got.data());
  }
  EXPECT_EQ(hot_hits, 5000);
}

TEST(RowCache, OfCapacityZeroCachesNothing) {
  RowCache cache(0, kRowBytes);
  std::array<std::byte, kRowBytes> got{};
  cache.insert(1, row_bytes(1).data());
  EXPECT_FALSE(cache.contains(1));
  EXPECT_FALSE(cache.read(1, got.data()));
  EXPECT_EQ(cache.memory_bytes(), 0);
}

}  // namespace
}  // namespace deepinfer
