// What every test of the CUDA backend needs: the card (tests skip without one), tensors of both element types that are
// random or poisoned, comparisons that name the first difference, and times of recorded work.
//
// Tests call the kernels by name (backends/cuda/kernels.h) and compare with plain loops, or call them through ops/*.h.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "backends/cuda/cuda_device.h"
#include "backends/cuda/cuda_stream.h"
#include "base/number_formats.h"
#include "device/view.h"

namespace deepinfer::cuda_test {

using Floats = std::vector<float>;

// Memory of the card that holds a vector of plain values. Copies at once.
template <typename T>
class OnCard {
 public:
  OnCard() = default;
  OnCard(Device& device, Stream& stream, const std::vector<T>& values) : stream_(&stream), count_(values.size()) {
    memory_ = device.allocate(static_cast<int64_t>(values.size() * sizeof(T))).value();
    stream.copy(memory_.get(), values.data(), static_cast<int64_t>(values.size() * sizeof(T)));
  }
  T* data() const { return reinterpret_cast<T*>(memory_.get()); }
  std::vector<T> values() const {
    std::vector<T> out(count_);
    EXPECT_TRUE(stream_->synchronize().ok());
    stream_->copy(out.data(), memory_.get(), static_cast<int64_t>(count_ * sizeof(T)));
    EXPECT_TRUE(stream_->synchronize().ok());
    return out;
  }

 private:
  Stream* stream_ = nullptr;
  size_t count_ = 0;
  std::shared_ptr<std::byte> memory_;
};

// An activation tensor on the card; rows are `stride` elements apart, what lies between is poison.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Device& device, Stream& stream, ElementType type, int64_t rows, int64_t cols, int64_t stride = 0)
      : type_(type), rows_(rows), cols_(cols), stride_(stride ? stride : cols) {
    // All bits set: NaN in both types.
    bytes_ = OnCard<uint8_t>(device, stream, std::vector<uint8_t>(rows_ * stride_ * element_bytes(type), 0xFF));
    stream_ = &stream;
  }
  TensorView view() const { return {reinterpret_cast<std::byte*>(bytes_.data()), type_, rows_, cols_, stride_}; }
  MatrixView<float> f32() const { return view().f32(); }
  void set(const Floats& values) {
    std::vector<uint8_t> bytes = bytes_.values();
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < cols_; ++c) {
        const float value = values[r * cols_ + c];
        const int64_t at = r * stride_ + c;
        if (type_ == ElementType::kF32) {
          std::memcpy(&bytes[at * 4], &value, 4);
        } else {
          const uint16_t bits = to_bfloat16(value).bits;
          std::memcpy(&bytes[at * 2], &bits, 2);
        }
      }
    }
    stream_->copy(bytes_.data(), bytes.data(), static_cast<int64_t>(bytes.size()));
  }
  Floats values() const {
    const std::vector<uint8_t> bytes = bytes_.values();
    Floats out(rows_ * cols_);
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < cols_; ++c) {
        const int64_t at = r * stride_ + c;
        if (type_ == ElementType::kF32) {
          std::memcpy(&out[r * cols_ + c], &bytes[at * 4], 4);
        } else {
          BFloat16 value{};
          std::memcpy(&value.bits, &bytes[at * 2], 2);
          out[r * cols_ + c] = to_float(value);
        }
      }
    }
    return out;
  }

 private:
  ElementType type_ = ElementType::kF32;
  int64_t rows_ = 0, cols_ = 0, stride_ = 0;
  OnCard<uint8_t> bytes_;
  Stream* stream_ = nullptr;
};

class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Device>> made = make_cuda_device({.memory_utilization = 0.5});
    if (!made.ok()) GTEST_SKIP() << "these kernels need their card: " << made.status().message();
    device_ = std::move(made).value();
    stream_ = device_->make_stream();
  }
  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  std::mt19937_64& random() { return random_; }

  // Normal values times `scale`, rounded to BF16 if `type` is.
  Floats random_values(int64_t count, float scale = 1, ElementType type = ElementType::kF32) {
    std::normal_distribution<float> normal;
    Floats values(count);
    for (float& value : values) {
      value = normal(random_) * scale;
      if (type == ElementType::kBf16) value = round_to_bfloat16(value);
    }
    return values;
  }
  template <typename T>
  OnCard<T> upload(const std::vector<T>& values) {
    return OnCard<T>(device(), stream(), values);
  }
  Tensor tensor(ElementType type, int64_t rows, int64_t cols, const Floats& values, int64_t stride = 0) {
    Tensor made(device(), stream(), type, rows, cols, stride);
    made.set(values);
    return made;
  }
  Tensor poisoned(ElementType type, int64_t rows, int64_t cols, int64_t stride = 0) {
    return Tensor(device(), stream(), type, rows, cols, stride);
  }

  // Median microseconds of one call of `body`, recorded `calls` times in a graph that is launched again and again.
  // `body` gets the number of the call, to take other memory each time.
  double time_us(const std::function<void(int)>& body, int calls = 20, int launches = 15) {
    body(0);
    EXPECT_TRUE(stream().synchronize().ok());
    stream().begin_recording();
    for (int i = 0; i < calls; ++i) body(i);
    const std::unique_ptr<Graph> graph = stream().end_recording();
    const cudaStream_t handle = cuda::cuda_stream(stream()).handle();
    cudaEvent_t begin, end;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    std::vector<double> times;
    for (int i = -3; i < launches; ++i) {
      cudaEventRecord(begin, handle);
      stream().launch(*graph);
      cudaEventRecord(end, handle);
      cudaEventSynchronize(end);
      float milliseconds = 0;
      cudaEventElapsedTime(&milliseconds, begin, end);
      if (i >= 0) times.push_back(1000.0 * milliseconds / calls);
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::mt19937_64 random_{std::random_device{}()};
};

inline const char* name_of(ElementType type) { return type == ElementType::kF32 ? "f32" : "bf16"; }
inline constexpr ElementType kBothTypes[] = {ElementType::kF32, ElementType::kBf16};

// Same bits, or both NaN.
inline void expect_same_bits(const Floats& got, const Floats& want, const std::string& what, int64_t cols = 1) {
  ASSERT_EQ(got.size(), want.size()) << what;
  int64_t wrong = 0, first = -1;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &want[i], 4) == 0 || (std::isnan(got[i]) && std::isnan(want[i]))) continue;
    if (wrong++ == 0) first = static_cast<int64_t>(i);
  }
  EXPECT_EQ(wrong, 0) << what << ": first at row " << first / cols << " column " << first % cols << ": got "
                      << got[std::max<int64_t>(first, 0)] << ", expected " << want[std::max<int64_t>(first, 0)]
                      << ", of " << got.size();
}

// |got - want| <= relative * |want| + absolute, for every element.
inline void expect_close(const Floats& got, const Floats& want, double relative, double absolute,
                         const std::string& what, int64_t cols = 1) {
  ASSERT_EQ(got.size(), want.size()) << what;
  int64_t wrong = 0, first = -1;
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::fabs(static_cast<double>(got[i]) - want[i]);
    if (error <= relative * std::fabs(want[i]) + absolute) continue;
    if (wrong++ == 0) first = static_cast<int64_t>(i);
    worst = std::max(worst, std::isnan(error) ? INFINITY : error);
  }
  EXPECT_EQ(wrong, 0) << what << ": first at row " << first / cols << " column " << first % cols << ": got "
                      << got[std::max<int64_t>(first, 0)] << ", expected " << want[std::max<int64_t>(first, 0)]
                      << "; largest error " << worst << ", of " << got.size();
}

// ||got - want|| / ||want||; infinite if anything is not a number.
inline double relative_error(const Floats& got, const Floats& want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += (static_cast<double>(got[i]) - want[i]) * (static_cast<double>(got[i]) - want[i]);
    norm += static_cast<double>(want[i]) * want[i];
  }
  return std::isnan(error) ? INFINITY : std::sqrt(error / std::max(norm, 1e-300));
}

}  // namespace deepinfer::cuda_test
