#include "ops/rigs.h"

#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "backends/cpu/cpu_device.h"
#include "base/number_formats.h"

namespace deepinfer::ops {
namespace {

constexpr uint32_t kGuard = 0x7FC5A5A5;  // a NaN, so that an op which reads it shows

template <typename T>
T guard() {
  T value;
  std::memcpy(&value, &kGuard, sizeof value);
  return value;
}

struct Machines {
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<Rig> rigs;
};

Machines make_machines() {
  Machines all;
  for (const char* kernels : {"reference", "avx2", "avx512"}) {
    for (const int threads : {1, 2, 3}) {
      auto device = make_cpu_device({.num_threads = threads, .kernels = kernels});
      if (!device.ok()) continue;  // this processor lacks the instructions; kernel sets are refused by name
      all.devices.push_back(std::move(device).value());
      all.streams.push_back(all.devices.back()->make_stream());
      const std::string name = std::string(kernels) + ", " + std::to_string(threads) + " threads";
      all.rigs.push_back({all.streams.back().get(), 0, name});
      all.rigs.push_back({all.streams.back().get(), 3, name + ", rows apart"});
    }
  }
  return all;
}

}  // namespace

const std::vector<Rig>& all_rigs() {
  static const Machines all = make_machines();
  return all.rigs;
}

template <typename T>
Buffer<T>::Buffer(const Rig& rig, int64_t rows, int64_t cols)
    : rows_(rows), cols_(cols), padding_(rig.padding), data_(rows * (cols + padding_) + padding_, guard<T>()) {}

template <typename T>
Buffer<T>::Buffer(const Rig& rig, int64_t cols, std::span<const T> values)
    : Buffer(rig, static_cast<int64_t>(values.size()) / cols, cols) {
  for (int64_t r = 0; r < rows_; ++r) std::copy_n(values.data() + r * cols, cols, view().row(r));
}

template <typename T>
std::vector<T> Buffer<T>::values() const {
  std::vector<T> out;
  const T untouched = guard<T>();
  for (int64_t i = 0; i < static_cast<int64_t>(data_.size()); ++i) {
    if (i % (cols_ + padding_) >= padding_) {
      out.push_back(data_[i]);
    } else {
      EXPECT_EQ(std::memcmp(&data_[i], &untouched, sizeof(T)), 0) << "written beside the matrix, at " << i;
    }
  }
  return out;
}

template class Buffer<float>;
template class Buffer<int32_t>;

template <typename T>
int64_t first_difference(const std::vector<T>& a, const std::vector<T>& b) {
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0) return static_cast<int64_t>(i);
  }
  return a.size() == b.size() ? -1 : static_cast<int64_t>(std::min(a.size(), b.size()));
}
template int64_t first_difference(const std::vector<float>&, const std::vector<float>&);
template int64_t first_difference(const std::vector<int32_t>&, const std::vector<int32_t>&);

void report_difference(const std::string& where, int64_t index) {
  EXPECT_EQ(index, -1) << "other bits than the reference: " << where;
}

void report_nonempty(const std::string& where, size_t size) { EXPECT_EQ(size, 0u) << "output from no rows: " << where; }

void expect_close(const std::vector<float>& actual, const std::vector<double>& expected, int64_t cols,
                  double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t begin = 0; begin < expected.size(); begin += cols) {
    double largest = 0;
    for (int64_t c = 0; c < cols; ++c) largest = std::max(largest, std::fabs(expected[begin + c]));
    for (int64_t c = 0; c < cols; ++c) {
      ASSERT_LE(std::fabs(actual[begin + c] - expected[begin + c]), tolerance * largest)
          << "row " << begin / cols << ", column " << c << ": " << actual[begin + c] << " against "
          << expected[begin + c];
    }
  }
}

std::vector<float> rounded(std::vector<float> values) {
  for (float& value : values) value = round_to_bfloat16(value);
  return values;
}

}  // namespace deepinfer::ops
