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
    token_blocks_.assign(kTokens, blocks_.data());
    tables_ = {token_blocks_.data(), kBlockShift, type, width};
    std::mt19937 random(static_cast<uint32_t>(width));
    const std::vector<float> values = normals(random, kTokens * width);
    std::vector<int64_t> positions(kTokens);
    for (int64_t first = 0; first < num_rows; first += kTokens) {
      std::iota(positions.begin(), positions.end(), first);
      ops::write_rows(stream, {.in = dense(values.data(), kTokens, width),
                               .tables = tables_,
                               .positions = positions.data(),
                               .quantise = quantiser});
    }
  }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;

  const ops::RowTables& tables() const { return tables_; }

 private:
  static constexpr int64_t kTokens = 64;  // of a step that writes
  std::unique_ptr<std::byte[]> memory_;
  std::vector<std::byte*> blocks_;
  std::vector<std::byte* const*> token_blocks_;
  ops::RowTables tables_;
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
  const int64_t attention_position = kWindow - 1, index_position = kRows - 1;
  const int32_t num_rows = kSelected;
  int32_t num_found = 0;
  double spent = 0;
  for (int round = 0; spent < options.seconds || all[0]->attention_times.size() < 12; ++round) {
    for (int64_t i = 0; i < kSelected; ++i) {
      rows[i] = static_cast<int32_t>(i * (kRows / kSelected) + random() % (kRows / kSelected));
    }
    for (const auto& caches : all) {
      const double attention = seconds_of([&] {
        ops::attention(*stream, {.out = dense(out.data(), 1, kHeads * kDim),
                                 .q = dense(q.data(), 1, kHeads * kDim),
                                 .positions = &attention_position,
                                 .window = caches->window.tables(),
                                 .window_size = kWindow,
                                 .compressed = caches->compressed.tables(),
                                 .selected = dense<const int32_t>(rows.data(), 1, kSelected),
                                 .num_selected = &num_rows,
                                 .sink = sink.data(),
                                 .num_heads = kHeads,
                                 .round_to_bf16 = true});
      });
      const double index = seconds_of([&] {
        ops::index_select(*stream, {.selected = dense(found.data(), 1, kSelected),
                                    .num_selected = &num_found,
                                    .q = dense(index_q.data(), 1, kIndexHeads * kIndexDim),
                                    .head_weights = dense(weights.data(), 1, kIndexHeads),
                                    .keys = caches->keys.tables(),
                                    .positions = &index_position,
                                    .max_visible = kRows,
                                    .num_heads = kIndexHeads,
                                    .top_k = kSelected});
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
                       .attention_row_bytes = ops::row_bytes(caches->compressed.tables().type, kDim),
                       .index_row_bytes = ops::row_bytes(caches->keys.tables().type, kIndexDim),
                       .attention_ns = caches->attention_times.p50() * 1e9 / (kWindow + kSelected),
                       .index_ns = caches->index_times.p50() * 1e9 / kRows});
  }
  return results;
}

}  // namespace deepinfer::bench
