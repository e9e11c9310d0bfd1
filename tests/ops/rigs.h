// Rigs: the ways in which a test runs an op. Every kernel set of this machine that promises the reference's bits, with
// 1, 2 and 3 threads, on dense matrices and on rows that lie apart, for all rows at once and for each row alone: all of
// them have to give the same bits, so a test states its expectation once and every way is held to it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "device/stream.h"
#include "device/view.h"

namespace deepinfer::ops {

struct Rig {
  Stream* stream = nullptr;
  int64_t padding = 0;  // values between rows
  std::string name;
};

// The first is the reference with one thread on dense matrices.
const std::vector<Rig>& all_rigs();

// A matrix whose rows lie `rig.padding` values apart, between guard values that no op may touch.
template <typename T>
class Buffer {
 public:
  Buffer(const Rig& rig, int64_t rows, int64_t cols);
  Buffer(const Rig& rig, int64_t cols, std::span<const T> values);  // as many rows as the values fill

  MatrixView<T> view() { return {data_.data() + padding_, rows_, cols_, cols_ + padding_}; }
  // The values row by row; fails the test if a guard changed.
  std::vector<T> values() const;

 private:
  int64_t rows_, cols_, padding_;
  std::vector<T> data_;
};
extern template class Buffer<float>;
extern template class Buffer<int32_t>;

// The first index at which the bits differ, or -1; sizes count.
template <typename T>
int64_t first_difference(const std::vector<T>& a, const std::vector<T>& b);
extern template int64_t first_difference(const std::vector<float>&, const std::vector<float>&);
extern template int64_t first_difference(const std::vector<int32_t>&, const std::vector<int32_t>&);

void report_difference(const std::string& where, int64_t index);
void report_nonempty(const std::string& where, size_t size);

// compute(rig, begin, end) gives the outputs of input rows [begin, end), equally many values a row. Returns those of
// all rows and demands the same bits from every rig, from each row alone, from two halves, and nothing from no rows.
template <typename Compute>
auto on_every_rig(int64_t num_rows, Compute compute) {
  const auto expected = compute(all_rigs().front(), int64_t{0}, num_rows);
  for (const Rig& rig : all_rigs()) {
    report_difference(rig.name, first_difference(compute(rig, int64_t{0}, num_rows), expected));
    const auto cut = [&](int64_t step) {
      auto joined = compute(rig, int64_t{0}, int64_t{0});
      report_nonempty(rig.name, joined.size());
      for (int64_t begin = 0; begin < num_rows; begin += step) {
        const auto part = compute(rig, begin, std::min(num_rows, begin + step));
        joined.insert(joined.end(), part.begin(), part.end());
      }
      return joined;
    };
    report_difference(rig.name + ", row by row", first_difference(cut(1), expected));
    report_difference(rig.name + ", in halves", first_difference(cut((num_rows + 1) / 2 + 1), expected));
  }
  return expected;
}

// Differences of each row, of `cols` values, relative to its largest magnitude.
void expect_close(const std::vector<float>& actual, const std::vector<double>& expected, int64_t cols,
                  double tolerance = 2e-6);

// Rows [begin, end) of a dense matrix.
template <typename T>
std::span<const T> rows_of(const std::vector<T>& values, int64_t cols, int64_t begin, int64_t end) {
  return std::span<const T>(values).subspan(begin * cols, (end - begin) * cols);
}

std::vector<float> rounded(std::vector<float> values);  // each to the nearest BF16

// The same numbers with every standard library.
class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  uint32_t bits() { return static_cast<uint32_t>(engine_()); }
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(bits() % static_cast<uint64_t>(high - low + 1));
  }
  float uniform() { return static_cast<float>(bits() >> 8) * 0x1p-24f; }  // [0, 1)
  // About a normal distribution: the sum of four uniforms.
  float normal() { return (uniform() + uniform() + uniform() + uniform() - 2.0f) * 1.7320508f; }
  std::vector<float> normals(int64_t count, float scale = 1.0f) {
    std::vector<float> values(count);
    for (float& value : values) value = normal() * scale;
    return values;
  }

 private:
  std::mt19937 engine_;
};

}  // namespace deepinfer::ops
