// Selection by itself: the 512 largest of many scores a row, with the maxima that scoring leaves behind and without.
#include <algorithm>
#include <bit>
#include <random>

#include <fmt/format.h>

#include "gpu/sections.h"

namespace deepinfer::bench {
namespace {

constexpr int64_t kSelected = 512;
constexpr int64_t kRun = 8;  // scores that share a maximum

// As the kernels order floats.
uint32_t ordered(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}

// Normal scores of some rows, and the maxima of their runs.
struct Scores {
  std::vector<uint32_t> values, maxima;
  Scores(int64_t rows, int64_t count, uint32_t seed) : values(rows * count), maxima(rows * count / kRun) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (uint32_t& value : values) value = ordered(normal(random));
    for (size_t i = 0; i < maxima.size(); ++i) {
      maxima[i] = *std::max_element(values.begin() + i * kRun, values.begin() + (i + 1) * kRun);
    }
  }
};

std::string check(const std::vector<uint32_t>& row, const std::vector<int32_t>& selected) {
  std::vector<int32_t> order(row.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::partial_sort(order.begin(), order.begin() + kSelected, order.end(),
                    [&](int32_t a, int32_t b) { return row[a] != row[b] ? row[a] > row[b] : a < b; });
  order.resize(kSelected);
  std::sort(order.begin(), order.end());
  return order == selected ? "ok, equal" : "WRONG";
}

}  // namespace

void bench_top_k(Parts& parts) {
  Card& card = parts.card;
  constexpr int64_t kOwnRows = 8;  // drawn; the others are copies
  for (const auto& [count, name] :
       {std::pair(int64_t{8192}, "8k"), std::pair(int64_t{65536}, "64k"), std::pair(int64_t{131072}, "128k")}) {
    const Scores drawn(kOwnRows, count, static_cast<uint32_t>(count));
    // More than the cache holds, but for the smallest.
    const int64_t pool = std::max<int64_t>(256, (int64_t{256} << 20) / (count * 4));
    const DeviceValues<uint32_t> values = card.values<uint32_t>(pool * count);
    const DeviceValues<uint32_t> maxima = card.values<uint32_t>(pool * count / kRun);
    for (int64_t r = 0; r < pool; r += kOwnRows) {
      card.stream().copy(values.data() + r * count, drawn.values.data(), static_cast<int64_t>(drawn.values.size() * 4));
      card.stream().copy(maxima.data() + r * count / kRun, drawn.maxima.data(),
                         static_cast<int64_t>(drawn.maxima.size() * 4));
    }
    const DeviceValues<int64_t> last_row = card.upload(std::vector<int64_t>(pool, count - 1));
    const DeviceValues<uint32_t*> tables = card.upload(std::vector<uint32_t*>(pool, values.data()));
    const DeviceValues<int32_t> selected = card.values<int32_t>(256 * kSelected),
                                num_selected = card.values<int32_t>(256);
    for (const int64_t n : parts.sizes({1, 8, 64, 256})) {
      for (const bool with_maxima : {false, true}) {
        const auto call_of = [&](int64_t i) {
          const int64_t first = i * n;
          return cuda::SelectCall{.scores = values.data() + first * count,
                                  .maxima = with_maxima ? maxima.data() + first * count / kRun : nullptr,
                                  .last_row = last_row.data(),
                                  .tables = reinterpret_cast<std::byte* const* const*>(tables.data()),
                                  .rows = n,
                                  .count = count,
                                  .k = kSelected,
                                  .selected = selected.data(),
                                  .num_selected = num_selected.data()};
        };
        card.poison(selected.data(), selected.bytes());
        cuda::select_largest(card.stream(), call_of(0));
        const int64_t row_checked = (n - 1) % kOwnRows;
        const std::vector<uint32_t> row(drawn.values.begin() + row_checked * count,
                                        drawn.values.begin() + (row_checked + 1) * count);
        KernelRow result{.section = "top_k",
                         .name = fmt::format("top-k 512 of {}{}", name, with_maxima ? ", maxima" : ""),
                         .rows = n};
        result.bytes = 2.0 * static_cast<double>(n * count);  // one read, were they BF16
        result.check = check(row, card.download(selected.data() + (n - 1) * kSelected, kSelected));
        card.measure(result, std::min<int64_t>(pool / n, 64),
                     [&](int64_t i) { cuda::select_largest(card.stream(), call_of(i)); });
      }
    }
  }
}

}  // namespace deepinfer::bench
