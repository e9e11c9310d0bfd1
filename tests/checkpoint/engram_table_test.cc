#include "checkpoint/engram_table.h"

#include <algorithm>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/temp_folder.h"

namespace deepinfer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kRows = 3000;
constexpr int64_t kDim = 64;

// Room for rows of a table.
struct Gathered {
  explicit Gathered(size_t rows) : codes(rows * kDim), scales(rows * kDim / 32) {}
  std::vector<uint8_t> codes, scales;
};

Status gather(EngramTable& table, std::span<const int64_t> rows, Gathered& out) {
  return table.gather(rows, out.codes.data(), out.scales.data());
}

// A table of random finite rows on disk, as a checkpoint. The weight starts at an odd address.
class Table {
 public:
  explicit Table(int64_t rows = kRows, int64_t dim = kDim) : rows_(rows), dim_(dim) {
    std::mt19937 random(7);
    codes.resize(static_cast<size_t>(rows * dim));
    scales.resize(static_cast<size_t>(rows * dim / 32));
    for (auto& code : codes) {
      code = static_cast<uint8_t>(random());
      if ((code & 0x7F) == 0x7F) code = 0;
    }
    for (auto& scale : scales) scale = static_cast<uint8_t>(random() % 240);
  }

  // Writes the file and maps it.
  Checkpoint open() {
    const size_t c = codes.size(), s = scales.size();
    const std::string header = fmt::format(
        R"({{"pad":{{"dtype":"I8","shape":[1],"data_offsets":[0,1]}},"w":{{"dtype":"F8_E4M3","shape":[{},{}],"data_offsets":[1,{}]}},"s":{{"dtype":"F8_E8M0","shape":[{},{}],"data_offsets":[{},{}]}}}})",
        rows_, dim_, 1 + c, rows_, dim_ / 32, 1 + c, 1 + c + s);
    std::string data = "x";
    data.append(codes.begin(), codes.end()).append(scales.begin(), scales.end());
    folder_.write("model.safetensors", safetensors_file(header, data));
    auto checkpoint = Checkpoint::open(folder_.path());
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    return std::move(checkpoint).value();
  }

  bool rows_equal(std::span<const int64_t> rows, const Gathered& got) const {
    for (size_t i = 0; i < rows.size(); ++i) {
      if (!std::equal(&codes[rows[i] * dim_], &codes[rows[i] * dim_] + dim_, &got.codes[i * dim_])) return false;
      const int64_t scales_per_row = dim_ / 32;
      const uint8_t* expected = &scales[rows[i] * scales_per_row];
      if (!std::equal(expected, expected + scales_per_row, &got.scales[i * scales_per_row])) return false;
    }
    return true;
  }

  std::vector<uint8_t> codes, scales;

 private:
  int64_t rows_, dim_;
  TempFolder folder_;
};

std::unique_ptr<EngramTable> make(const Checkpoint& checkpoint, int64_t cache_rows) {
  return EngramTable::create(*checkpoint.find("w"), *checkpoint.find("s"), cache_rows).value();
}

std::vector<int64_t> random_rows(std::mt19937& random, size_t count, int64_t limit = kRows) {
  std::vector<int64_t> rows(count);
  for (auto& row : rows) row = static_cast<int64_t>(random() % limit);
  return rows;
}

TEST(EngramTable, GivesEveryRowAsItIsStored) {
  Table data;
  const auto checkpoint = data.open();
  const auto table = make(checkpoint, 0);
  std::vector<int64_t> rows(kRows);
  for (int64_t i = 0; i < kRows; ++i) rows[i] = kRows - 1 - i;
  Gathered out(kRows);
  ASSERT_TRUE(gather(*table, rows, out).ok());
  EXPECT_TRUE(data.rows_equal(rows, out));
  EXPECT_EQ(table->counters().misses, kRows);
}

TEST(EngramTable, PrefetchedRowsAreHits) {
  Table data;
  const auto checkpoint = data.open();
  const auto table = make(checkpoint, kRows);
  const std::vector<int64_t> rows = {5, 2999, 0, 5, 1234, 5};
  table->prefetch(rows);
  table->wait_for_prefetch();
  EXPECT_EQ(table->counters().prefetched, 4);  // without the repetitions
  Gathered out(rows.size());
  ASSERT_TRUE(gather(*table, rows, out).ok());
  EXPECT_TRUE(data.rows_equal(rows, out));
  EXPECT_EQ(table->counters().hits, 6);
  EXPECT_EQ(table->counters().misses, 0);
}

TEST(EngramTable, RowsThatWereGatheredAreHitsTheNextTime) {
  Table data;
  const auto checkpoint = data.open();
  const auto table = make(checkpoint, 64);
  Gathered out(2);
  const std::vector<int64_t> rows = {17, 18};
  ASSERT_TRUE(gather(*table, rows, out).ok());
  ASSERT_TRUE(gather(*table, rows, out).ok());
  EXPECT_EQ(table->counters().hits, 2);
  EXPECT_EQ(table->counters().misses, 2);
  EXPECT_TRUE(data.rows_equal(rows, out));
}

TEST(EngramTable, ResultsDoNotDependOnTheCacheOrOnTheInterleavingOfCalls) {
  Table data;
  const auto checkpoint = data.open();
  for (const int64_t cache_rows : {0, 1, 2, 33, 200, 1000, 100000}) {
    const auto table = make(checkpoint, cache_rows);
    std::mt19937 random(static_cast<uint32_t>(cache_rows));
    for (int step = 0; step < 300; ++step) {
      // Mostly a small hot set, so that hits, misses and evictions all occur.
      const auto rows = random_rows(random, 1 + random() % 48, random() % 2 ? 150 : kRows);
      if (random() % 2) table->prefetch(rows);
      if (random() % 8 == 0) table->wait_for_prefetch();
      Gathered out(rows.size());
      ASSERT_TRUE(gather(*table, rows, out).ok());
      ASSERT_TRUE(data.rows_equal(rows, out)) << "cache " << cache_rows << ", step " << step;
    }
    const auto counters = table->counters();
    EXPECT_EQ(counters.hits == 0, cache_rows == 0);
    EXPECT_GT(counters.misses, 0);
  }
}

TEST(EngramTable, ManyThreadsMayGatherAndPrefetchAtOnce) {
  Table data;
  const auto checkpoint = data.open();
  const auto table = make(checkpoint, 300);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      Gathered out(24);
      for (int step = 0; step < 200; ++step) {
        const auto next = random_rows(random, 24, 400), rows = random_rows(random, 24, 400);
        table->prefetch(next);
        if (!gather(*table, rows, out).ok() || !data.rows_equal(rows, out)) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(EngramTable, EndsPromptlyWithRowsStillWaiting) {
  Table data;
  const auto checkpoint = data.open();
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    const auto table = make(checkpoint, 100);
    table->prefetch(random_rows(random, 5000));
  }
}

TEST(EngramTable, ForgetsRowsAskedForAheadWhenTooManyAreWaiting) {
  Table data;
  const auto checkpoint = data.open();
  const auto table = make(checkpoint, 100);
  std::mt19937 random(3);
  const auto rows = random_rows(random, (1 << 20) + 500);
  table->prefetch(rows);
  EXPECT_EQ(table->counters().dropped, 500);
  table->wait_for_prefetch();
}

TEST(EngramTable, ReportsValuesThatAreNotFiniteByRowAndColumnHoweverTheyAreRead) {
  Table data;
  data.codes[40 * kDim + 3] = 0xFF;
  data.scales[(50 * kDim + 32) / 32] = 255;
  data.codes[60 * kDim + 33] = 0x7E;
  data.scales[(60 * kDim + 32) / 32] = 254;  // 448 * 2^127 is over the range
  for (int64_t c = 0; c < 32; ++c) data.codes[70 * kDim + c] = 0x38 - c % 2;
  data.scales[70 * kDim / 32] = 254;  // 2^127 is not
  const auto checkpoint = data.open();
  Gathered out(1);
  for (const bool ahead : {false, true}) {
    const auto table = make(checkpoint, 10);
    const std::pair<int64_t, const char*> cases[] = {
        {40, "row 40 column 3"}, {50, "row 50 column 32"}, {60, "row 60 column 33"}};
    for (const auto& [row, place] : cases) {
      if (ahead) table->prefetch({&row, 1});
      table->wait_for_prefetch();
      const Status status = gather(*table, {&row, 1}, out);
      ASSERT_FALSE(status.ok()) << row;
      EXPECT_THAT(status.message(), AllOf(HasSubstr("\"w\""), HasSubstr(place), HasSubstr("damaged")));
    }
    const int64_t good = 70;
    EXPECT_TRUE(gather(*table, {&good, 1}, out).ok());
  }
}

TEST(EngramTable, ReportsRowsOutsideOfTheTableWhenTheyAreGathered) {
  Table data;
  const auto checkpoint = data.open();
  const auto table = make(checkpoint, 10);
  Gathered out(1);
  for (const int64_t row : {int64_t{-1}, kRows, INT64_MAX, INT64_MIN}) {
    table->prefetch({&row, 1});
    table->wait_for_prefetch();
    const Status status = gather(*table, {&row, 1}, out);
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.message(), AllOf(HasSubstr(std::to_string(row)), HasSubstr("3000 rows")));
  }
}

TEST(EngramTable, RefusesTensorsThatAreNoTable) {
  Table data;
  const auto checkpoint = data.open();
  const StoredTensor weight = *checkpoint.find("w"), scale = *checkpoint.find("s");
  const auto message = [](const StoredTensor& w, const StoredTensor& s, int64_t cache) {
    const auto result = EngramTable::create(w, s, cache);
    return result.ok() ? std::string() : result.status().message();
  };
  StoredTensor changed = weight;
  changed.dtype = DType::kBf16;
  EXPECT_THAT(message(changed, scale, 1), AllOf(HasSubstr("BF16"), HasSubstr("F8_E4M3")));
  changed = weight;
  changed.shape = {kRows, 48};
  EXPECT_THAT(message(changed, scale, 1), HasSubstr("[3000, 48]"));
  changed = scale;
  changed.shape = {kRows, 1};
  EXPECT_THAT(message(weight, changed, 1), AllOf(HasSubstr("[3000, 1]"), HasSubstr("[3000, 2]")));
  changed.shape = {kRows};
  EXPECT_THAT(message(weight, changed, 1), HasSubstr("[3000]"));
  EXPECT_THAT(message(weight, scale, -1), HasSubstr("-1"));
}

TEST(EngramTable, TakesNoMoreMemoryThanItSays) {
  Table data;
  const auto checkpoint = data.open();
  const auto table = make(checkpoint, 1000);
  EXPECT_GE(table->cache_bytes(), 1000 * (kDim + kDim / 32));
  EXPECT_LE(table->cache_bytes(), 1000 * (kDim + kDim / 32 + 9 + 4 * 4) + 16 * 512);
  EXPECT_EQ(make(checkpoint, 0)->cache_bytes(), 0);
}

}  // namespace
}  // namespace deepinfer
