#include "cpu/cache_bench.h"

#include <memory>
#include <numeric>
#include <optional>
#include <random>

#include "backends/cpu/cpu_device.h"
#include "cpu/measure.h"
#include "model/kv_layout.h"
#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/indexer.h"

namespace deepinfer::bench {
namespace {

constexpr int64_t kHeads = 64, kDim = 512, kIndexHeads = 32, kIndexDim = 128;
constexpr int64_t kRows = 65536, kWindow = 128, kSelected = 512;
constexpr int32_t kBlockShift = 6;

std::vector<float> normals(std::mt19937& random, int64_t count) {
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// Random rows as a model would leave them.
class Rows {
 public:
  Rows(Stream& stream, ops::RowType type, int64_t width, int64_t num_rows, ops::FakeQuant quantiser) {
    const int64_t block_bytes = ops::row_bytes(type, width) << kBlockShift;
    const int64_t num_blocks = num_rows >> kBlockShift;
    memory_ = std::make_unique<std::byte[]>(num_blocks * block_bytes);
    for (int64_t b = 0; b < num_blocks; ++b) blocks_.push_back(memory_.get() + b * block_bytes);
    table_ = {blocks_.data(), kBlockShift, type, width};
    std::mt19937 random(static_cast<uint32_t>(width));
    const std::vector<float> values = normals(random, 64 * width);
    const std::vector<const ops::RowTable*> tables(64, &table_);
    std::vector<int64_t> numbers(64);
    for (int64_t first = 0; first < num_rows; first += 64) {
      std::iota(numbers.begin(), numbers.end(), first);
      ops::write_rows(stream, {{values.data(), 64, width, width}, tables, numbers, quantiser});
    }
  }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;

  const ops::RowTable& table() const { return table_; }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::vector<std::byte*> blocks_;
  ops::RowTable table_;
};

// The caches of one format, and what it took to read them.
struct FormatCaches {
  FormatCaches(Stream& stream, KvFormat kv_format, ops::RowType window_type, ops::RowType compressed_type,
               ops::RowType key_type)
      : format(kv_format),
        window(stream, window_type, kDim, kWindow, ops::FakeQuant::kE4m3Group32),
        compressed(stream, compressed_type, kDim, kRows, ops::FakeQuant::kE2m1Group16),
        keys(stream, key_type, kIndexDim, kRows, ops::FakeQuant::kE2m1Group32) {}

  KvFormat format;
  Rows window, compressed, keys;
  Windows attention_times, index_times;
};

}  // namespace

std::vector<CacheResult> bench_caches(const CacheBenchOptions& options) {
  using enum ops::RowType;
  const std::unique_ptr<Device> device =
      make_cpu_device({.num_threads = options.num_threads, .kernels = options.kernels}).value();
  const std::unique_ptr<Stream> stream = device->make_stream();
  std::vector<std::unique_ptr<FormatCaches>> all;
  all.push_back(std::make_unique<FormatCaches>(*stream, KvFormat::kBf16, kBf16, kBf16, kBf16));
  all.push_back(std::make_unique<FormatCaches>(*stream, KvFormat::kFp8, kE4m3Group32, kE4m3Group32, kE4m3Group32));
  all.push_back(std::make_unique<FormatCaches>(*stream, KvFormat::kFp4, kE4m3Group32, kE2m1Group16, kE2m1Group32));

  std::mt19937 random(1);
  const std::vector<float> q = normals(random, kHeads * kDim), index_q = normals(random, kIndexHeads * kIndexDim);
  const std::vector<float> weights = normals(random, kIndexHeads), sink(kHeads, 0.0f);
  std::vector<float> out(kHeads * kDim);
  std::vector<int32_t> rows(kSelected), found(kSelected);
  int32_t num_found = 0;
  double spent = 0;
  for (int round = 0; spent < options.seconds || all[0]->attention_times.size() < 12; ++round) {
    for (int64_t i = 0; i < kSelected; ++i) {
      rows[i] = static_cast<int32_t>(i * (kRows / kSelected) + random() % (kRows / kSelected));
    }
    for (const auto& caches : all) {
      const ops::AttentionQuery query{&caches->window.table(),     0,           kWindow,
                                      &caches->compressed.table(), rows.data(), kSelected};
      const double attention = seconds_of([&] {
        ops::attention(*stream, {{out.data(), 1, kHeads * kDim, kHeads * kDim},
                                 {q.data(), 1, kHeads * kDim, kHeads * kDim},
                                 {&query, 1},
                                 sink.data(),
                                 kHeads,
                                 true});
      });
      const ops::IndexQuery index_query{&caches->keys.table(), kRows};
      const double index = seconds_of([&] {
        ops::index_select(*stream, {{found.data(), 1, kSelected, kSelected},
                                    {&num_found, 1},
                                    {index_q.data(), 1, kIndexHeads * kIndexDim, kIndexHeads * kIndexDim},
                                    {weights.data(), 1, kIndexHeads, kIndexHeads},
                                    {&index_query, 1},
                                    kIndexHeads,
                                    kSelected});
      });
      spent += attention + index;
      if (round == 0) continue;  // grows buffers
      caches->attention_times.add(attention);
      caches->index_times.add(index);
    }
  }
  std::vector<CacheResult> results;
  for (const auto& caches : all) {
    results.push_back({.set = options.kernels,
                       .format = std::string(name_of(caches->format)),
                       .num_threads = options.num_threads,
                       .attention_row_bytes = ops::row_bytes(caches->compressed.table().type, kDim),
                       .index_row_bytes = ops::row_bytes(caches->keys.table().type, kIndexDim),
                       .attention_ns = caches->attention_times.p50() * 1e9 / (kWindow + kSelected),
                       .index_ns = caches->index_times.p50() * 1e9 / kRows});
  }
  return results;
}

}  // namespace deepinfer::bench
