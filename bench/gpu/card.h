// Card: the device under test, its stream, and what every part of the benchmark does with them: memory, random and
// poisoned tensors, times of recorded work, rows of the result.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/cuda/cuda_bench_tools.h"
#include "device/stream.h"
#include "gpu/results.h"
#include "ops/op_table.h"

namespace deepinfer::bench {

// Device memory of `count` values.
template <typename T>
class DeviceValues {
 public:
  DeviceValues() = default;
  DeviceValues(std::shared_ptr<std::byte> memory, int64_t count) : memory_(std::move(memory)), count_(count) {}
  T* data() const { return reinterpret_cast<T*>(memory_.get()); }
  int64_t size() const { return count_; }
  int64_t bytes() const { return count_ * static_cast<int64_t>(sizeof(T)); }
  MatrixView<T> matrix(int64_t rows) const { return dense(data(), rows, count_ / rows); }

 private:
  std::shared_ptr<std::byte> memory_;
  int64_t count_ = 0;
};

// An activation, BF16 as the model's rounding makes it on this device.
class Activation {
 public:
  Activation() = default;
  Activation(std::shared_ptr<std::byte> memory, int64_t rows, int64_t cols)
      : memory_(std::move(memory)), rows_(rows), cols_(cols) {}
  TensorView rows(int64_t count) const { return {memory_.get(), ElementType::kBf16, count, cols_, cols_}; }
  TensorView all() const { return rows(rows_); }
  int64_t bytes() const { return rows_ * cols_ * 2; }

 private:
  std::shared_ptr<std::byte> memory_;
  int64_t rows_ = 0, cols_ = 0;
};

class Card {
 public:
  struct Options {
    int replays = 20;            // of a recording, at least
    double seconds = 0.25;       // of replays of one recording, at most (but for the least number)
    double recording_us = 4000;  // how long a recording may run, if it repeats something
    double warm_up_us = 60000;   // of replays before those that count
  };
  Card(std::unique_ptr<Device> device, const Options& options);

  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  const ops::OpTable& ops() const { return stream_->ops(); }
  Results& results() { return results_; }

  std::shared_ptr<std::byte> allocate(int64_t bytes);
  template <typename T>
  DeviceValues<T> values(int64_t count) {
    return {allocate(count * static_cast<int64_t>(sizeof(T))), count};
  }
  template <typename T>
  DeviceValues<T> upload(const std::vector<T>& values) {
    DeviceValues<T> out = this->values<T>(static_cast<int64_t>(values.size()));
    stream_->copy(out.data(), values.data(), out.bytes());
    return out;
  }
  template <typename T>
  std::vector<T> download(const T* from, int64_t count) {
    std::vector<T> out(count);
    stream_->copy(out.data(), from, count * static_cast<int64_t>(sizeof(T)));
    wait();
    return out;
  }
  DeviceValues<float> constant(int64_t count, float value) { return upload(std::vector<float>(count, value)); }
  // Of standard normal values, rounded to BF16.
  Activation random_activation(int64_t rows, int64_t cols);
  Activation poisoned_activation(int64_t rows, int64_t cols);
  void fill(void* to, int64_t bytes, cuda::RandomKind kind);
  void poison(void* to, int64_t bytes) { cuda::poison(*stream_, to, bytes); }
  void wait();

  // The time of body(i), recorded for i = 0, 1, ... below some number up to `most_calls`; each should touch memory that
  // the last ones did not.
  Timing time(int64_t most_calls, const std::function<void(int64_t)>& body);
  // Times `body` as row `row` of the results, unless it was asked for and an op of it is missing.
  void measure(KernelRow row, int64_t most_calls, const std::function<void(int64_t)>& body);

 private:
  double replay(Graph& graph);

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Options options_;
  Results results_;
  uint64_t seed_ = 0;
};

}  // namespace deepinfer::bench
