#include "cpu/linear_bench.h"

#include <cmath>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "cpu/ceilings.h"
#include "cpu/measure.h"
#include "cpu/random_weights.h"

namespace deepinfer::bench {
namespace {

using cpu::LinearKernels;
using ops::LinearTask;
using ops::PackedWeight;

constexpr int kGemvTokens[] = {1, 2, 4, 8};
constexpr int kGemmTokens[] = {64, 256, 512};
constexpr size_t kFewestWindows = 5;

std::span<const std::byte> memory_of(const PackedWeight& weight) {
  return {weight.data.get(), static_cast<size_t>(weight.bytes)};
}

// Inputs and outputs of a product with a number of tokens.
struct Product {
  Product(const LinearShape& shape, int tokens)
      : num_tokens(tokens),
        in(random_bf16_values(tokens * shape.cols, 7)),
        out(tokens * shape.rows, std::numeric_limits<float>::quiet_NaN()) {}

  void run(const LinearKernels& kernels, ThreadPool& pool, const PackedWeight& weight) {
    const LinearTask task = {dense(out.data(), num_tokens, weight.rows),
                             dense<const float>(in.data(), num_tokens, weight.cols), &weight, true, false};
    kernels.run(pool, {&task, 1});
  }

  int64_t num_tokens;
  std::vector<float> in;
  std::vector<float> out;
};

// Compares 32 rows at three places of `product` with the reference: equal bits, or the largest error in units of the
// bound that holds for any two orders of summation (see tests/backends/cpu/linear_test.cc).
std::string check(const RandomMatrix& matrix, const LinearShape& shape, const Product& product, ThreadPool& pool) {
  const cpu::LinearKernels& reference = cpu::reference_linear();
  bool is_equal = true;
  double worst = 0.0;
  for (const int64_t first_row : {int64_t{0}, shape.rows / 64 * 32, shape.rows - 32}) {
    const ops::WeightSource slice = matrix.slice(first_row);
    const PackedWeight weight = reference.pack(pool, slice);
    Product expected({shape.format, shape.format_name, 32, shape.cols}, static_cast<int>(product.num_tokens));
    expected.run(reference, pool, weight);
    const std::vector<float> weights = magnitudes(slice);
    for (int64_t token = 0; token < product.num_tokens; ++token) {
      for (int64_t row = 0; row < 32; ++row) {
        const float want = expected.out[token * 32 + row];
        const float got = product.out[token * shape.rows + first_row + row];
        if (std::memcmp(&want, &got, sizeof(want)) == 0) continue;
        is_equal = false;
        double magnitude = 0.0;
        for (int64_t k = 0; k < shape.cols; ++k)
          magnitude += std::fabs(weights[row * shape.cols + k] * product.in[token * shape.cols + k]);
        const double bound = magnitude * 0x1p-24 * 2.0 * (3 * 16 + static_cast<double>(shape.cols) / 32);
        const double error = std::fabs(static_cast<double>(got) - want) / bound;
        worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
      }
    }
  }
  if (is_equal) return "equal";
  return worst <= 1.0 ? fmt::format("{:.2f} bound", worst) : fmt::format("WRONG {:.1f}", worst);
}

struct Set {
  std::vector<RandomMatrix> matrix;  // of the first weight
  std::vector<PackedWeight> weights;
  size_t next = 0;

  const PackedWeight& take() { return weights[next++ % weights.size()]; }
};

Set make_set(const LinearKernels& kernels, const LinearShape& shape, ThreadPool& pool, double bytes) {
  Set set;
  double made = 0.0;
  for (uint64_t seed = 1; made < bytes; ++seed) {
    RandomMatrix matrix(pool, shape.format, shape.rows, shape.cols, seed);
    set.weights.push_back(kernels.pack(pool, matrix.source()));
    made += static_cast<double>(set.weights.back().bytes);
    if (seed == 1) set.matrix.push_back(std::move(matrix));
  }
  return set;
}

double cached_gbps(const LinearKernels& kernels, const LinearShape& shape, double seconds) {
  ThreadPool pool(1);
  const int64_t cols = 1024;
  const LinearShape small = {shape.format, shape.format_name, shape.format == ops::WeightFormat::kBf16 ? 128 : 256,
                             cols};
  const RandomMatrix matrix(pool, small.format, small.rows, small.cols, 1);
  const PackedWeight weight = kernels.pack(pool, matrix.source());
  Product product(small, 1);
  Windows windows;
  constexpr int kCalls = 20;
  for (double spent = 0.0; spent < seconds || windows.size() < kFewestWindows;) {
    const double window = seconds_of([&] {
      for (int i = 0; i < kCalls; ++i) product.run(kernels, pool, weight);
    });
    windows.add(window / kCalls);
    spent += window;
  }
  return windows.rate_p50(static_cast<double>(weight.bytes)) * 1e-9;
}

void bench_gemv(const LinearKernels& kernels, const LinearShape& shape, ThreadPool& pool, Set& set, double seconds,
                LinearResults& results) {
  std::vector<Product> products;
  std::vector<Windows> windows(std::size(kGemvTokens));
  Windows reads;
  for (const int tokens : kGemvTokens) products.emplace_back(shape, tokens);
  const double budget = seconds * static_cast<double>(products.size() + 1);
  double spent = 0.0;
  while (spent < budget || reads.size() < kFewestWindows) {
    spent += seconds_of([&] {
      reads.add(seconds_of([&, memory = memory_of(set.take())] { read_memory(pool, memory); }));
      for (size_t i = 0; i < products.size(); ++i) {
        windows[i].add(seconds_of([&, &weight = set.take()] { products[i].run(kernels, pool, weight); }));
      }
    });
  }
  const double bytes = static_cast<double>(set.weights.front().bytes);
  const double cached = pool.num_threads() == 1 ? cached_gbps(kernels, shape, seconds / 4) : 0.0;
  for (size_t i = 0; i < products.size(); ++i) {
    products[i].run(kernels, pool, set.weights.front());
    results.gemv.push_back({kernels.name, shape.format_name, pool.num_threads(), kGemvTokens[i],
                            windows[i].rate_p50(bytes) * 1e-9, windows[i].rate_p90(bytes) * 1e-9,
                            reads.rate_p50(bytes) * 1e-9, reads.rate_p90(bytes) * 1e-9,
                            windows[i].p50() / windows[0].p50(), i == 0 ? cached : 0.0,
                            check(set.matrix.front(), shape, products[i], pool)});
  }
}

const char* peak_name_of(const LinearKernels& kernels) {
  if (&kernels == &cpu::avx512_bf16_linear()) return "vdpbf16ps";
  if (&kernels == &cpu::amx_linear()) return "tdpbf16ps";
  return &kernels == &cpu::avx512_linear() ? "fp32 fma, avx512" : "fp32 fma, avx2";
}

void bench_gemm(const LinearKernels& kernels, const LinearShape& shape, ThreadPool& pool, Set& set, double seconds,
                LinearResults& results) {
  const PeakLoop& loop = peak_loop(peak_name_of(kernels));
  const PeakWindow peak(pool, loop);
  for (const int tokens : kGemmTokens) {
    Product product(shape, tokens);
    Windows windows, peaks;
    for (double spent = 0.0; spent < seconds || windows.size() < kFewestWindows;) {
      peak.run(peaks);
      const double window = seconds_of([&, &weight = set.take()] { product.run(kernels, pool, weight); });
      windows.add(window);
      spent += window;
    }
    product.run(kernels, pool, set.weights.front());
    const double operations = 2.0 * static_cast<double>(shape.rows * shape.cols) * tokens;
    results.gemm.push_back({kernels.name, shape.format_name, pool.num_threads(), tokens,
                            windows.rate_p50(operations) * 1e-9, peaks.rate_p50(peak.operations()) * 1e-9, loop.name,
                            check(set.matrix.front(), shape, product, pool)});
  }
}

}  // namespace

void bench_linear(const LinearKernels& kernels, const LinearShape& shape, const std::vector<ThreadPool*>& pools,
                  const LinearBenchOptions& options, LinearResults& results) {
  Set set = make_set(kernels, shape, *pools.back(), options.set_bytes);
  for (ThreadPool* pool : pools) {
    bench_gemv(kernels, shape, *pool, set, options.seconds, results);
    bench_gemm(kernels, shape, *pool, set, options.seconds, results);
  }
}

}  // namespace deepinfer::bench
