// The contract of ops/linear.h as plain loops over a row-major copy of the weight.
#include <cmath>
#include <cstring>
#include <vector>

#include "backends/cpu/linear.h"
#include "backends/cpu/linear_pack.h"
#include "base/number_formats.h"

namespace deepinfer::cpu {
namespace {

constexpr int kGroup = 32;

bool always() { return true; }

ops::PackedWeight pack(ThreadPool&, const ops::WeightSource& source) {
  const int64_t data_bytes = weight_data_bytes(source);
  const int64_t scale_bytes = weight_scale_bytes(source);
  ops::PackedWeight packed = allocate_weight(source, data_bytes + scale_bytes);
  std::memcpy(packed.data.get(), source.data, data_bytes);
  if (scale_bytes > 0) std::memcpy(packed.data.get() + data_bytes, source.scales, scale_bytes);
  return packed;
}

// Row-major, as the checkpoint has it: the data, then the scales.
struct Rows {
  explicit Rows(const ops::PackedWeight& weight)
      : format(weight.format),
        cols(weight.cols),
        data(reinterpret_cast<const uint8_t*>(weight.data.get())),
        scales(data + weight_data_bytes({weight.format, weight.rows, weight.cols})) {}

  float value(int64_t row, int64_t col) const {
    const int64_t i = row * cols + col;
    switch (format) {
      case ops::WeightFormat::kF8Tile32:
        return e4m3_to_float(data[i]);
      case ops::WeightFormat::kMxfp4:
        return e2m1_to_float(col % 2 == 0 ? data[i / 2] & 15 : data[i / 2] >> 4);
      case ops::WeightFormat::kBf16:
        return to_float(BFloat16{static_cast<uint16_t>(data[2 * i] | data[2 * i + 1] << 8)});
      case ops::WeightFormat::kF32:
        break;
    }
    float value;
    std::memcpy(&value, data + 4 * i, sizeof(value));
    return value;
  }

  float scale(int64_t row, int64_t group) const {
    switch (format) {
      case ops::WeightFormat::kF8Tile32:
        return e8m0_to_float(scales[row / 32 * (cols / kGroup) + group]);
      case ops::WeightFormat::kMxfp4:
        return e8m0_to_float(scales[row * (cols / kGroup) + group]);
      default:
        return 1.0f;
    }
  }

  ops::WeightFormat format;
  int64_t cols;
  const uint8_t* data;
  const uint8_t* scales;
};

void run_row(const ops::LinearTask& task, const Rows& weight, int64_t row) {
  thread_local std::vector<float> values;  // kept, so that a run allocates once
  values.resize(weight.cols);
  for (int64_t k = 0; k < weight.cols; ++k) values[k] = weight.value(row, k);
  const MatrixView<float> out = task.out.f32();
  const MatrixView<const float> in = task.in.f32();
  for (int64_t token = 0; token < out.rows; ++token) {
    const float* x = in.row(token);
    float total = 0.0f;
    for (int64_t group = 0; group < weight.cols / kGroup; ++group) {
      float sum = 0.0f;
      for (int64_t k = group * kGroup; k < (group + 1) * kGroup; ++k) sum = std::fma(values[k], x[k], sum);
      total = std::fma(sum, weight.scale(row, group), total);
    }
    out.row(token)[row] = task.round_output_to_bf16 ? round_to_bfloat16(total) : total;
  }
}

void run(ThreadPool& pool, std::span<const ops::LinearTask> tasks) {
  for (const ops::LinearTask& task : tasks) {
    if (task.out.rows == 0) continue;
    const Rows weight(*task.weight);
    pool.run(task.weight->rows, [&](int64_t row, int) { run_row(task, weight, row); });
  }
}

constexpr LinearKernels kReference = {"reference", always, pack, run};

}  // namespace

const LinearKernels& reference_linear() { return kReference; }

}  // namespace deepinfer::cpu
