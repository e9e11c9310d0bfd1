#include "model/weight_binder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/number_formats.h"

namespace deepinfer {
namespace {

// The first value that is not a finite number, or -1.
int64_t find_not_finite(const StoredTensor& tensor) {
  const auto bytes = tensor.contents();
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  const int64_t size = static_cast<int64_t>(bytes.size());
  bool bad = false;
  const auto first = [&](int64_t step, auto&& is_bad) {
    for (int64_t i = 0; i < size; i += step) bad |= is_bad(data + i);  // branch-free: almost always nothing is found
    if (!bad) return int64_t{-1};
    for (int64_t i = 0;; i += step) {
      if (is_bad(data + i)) return i / step;
    }
  };
  switch (tensor.dtype) {
    case DType::kF8E8m0:
      return first(1, [](const uint8_t* p) { return *p == 255; });
    case DType::kF8E4m3:
      return first(1, [](const uint8_t* p) { return (*p & 0x7F) == 0x7F; });
    case DType::kBf16:
      return first(2, [](const uint8_t* p) { return (p[1] & 0x7F) == 0x7F && (p[0] & 0x80); });
    case DType::kF32:
      return first(4, [](const uint8_t* p) { return (p[3] & 0x7F) == 0x7F && (p[2] & 0x80); });
    default:
      return -1;  // packed E2M1: every code is a number
  }
}

}  // namespace

void WeightBinder::count(const StoredTensor& tensor) {
  done_bytes_ += tensor.bytes;
  if (progress_) progress_(done_bytes_, total_bytes_);
}

Status WeightBinder::find(const std::string& name, DType dtype, std::initializer_list<int64_t> shape,
                          const StoredTensor*& out) {
  DI_ASSIGN_OR_RETURN(out, checkpoint_.require(name, dtype, shape));
  const int64_t bad = find_not_finite(*out);
  if (bad < 0) return Status();
  return invalid_input("{}: {}: value {} is not a finite number ({}); the file is damaged: copy or download it again",
                       checkpoint_.shards()[out->shard].file_name, name, bad, name_of(dtype));
}

Status WeightBinder::mapped(const std::string& name, DType dtype, std::initializer_list<int64_t> shape,
                            const StoredTensor*& out) {
  DI_ASSIGN_OR_RETURN(out, checkpoint_.require(name, dtype, shape));
  return Status();
}

Status WeightBinder::pack(const std::string& name, const ops::WeightSource& source, ops::PackedWeight& out) {
  out = ops::pack_weight(stream_, source);
  if (out.data != nullptr) return Status();
  return Status(ErrorCode::kOutOfMemory,
                fmt::format("{} [{}, {}] does not fit in the {} bytes of device memory that are free, {} of {} bytes of "
                            "weights are loaded; let the program use more of it (gpu_memory_utilization), or use a "
                            "device with more",
                            name, source.rows, source.cols, device_.free_bytes(), done_bytes_, total_bytes_));
}

Status WeightBinder::fp8(const std::string& prefix, int64_t rows, int64_t cols, ops::PackedWeight& out) {
  std::vector<ops::PackedWeight> one;
  DI_RETURN_IF_ERROR(fp8_parts(prefix, rows, cols, 1, one));
  out = std::move(one.front());
  return Status();
}

Status WeightBinder::fp8_parts(const std::string& prefix, int64_t rows, int64_t cols, int64_t parts,
                               std::vector<ops::PackedWeight>& out) {
  const StoredTensor* weight = nullptr;
  const StoredTensor* scale = nullptr;
  DI_RETURN_IF_ERROR(find(prefix + ".weight", DType::kF8E4m3, {rows, cols}, weight));
  DI_RETURN_IF_ERROR(find(prefix + ".scale", DType::kF8E8m0, {(rows + 31) / 32, (cols + 31) / 32}, scale));
  out.clear();
  const int64_t part_rows = rows / parts;
  DI_CHECK(parts == 1 || part_rows % 32 == 0, "{} rows in {} parts", rows, parts);
  for (int64_t part = 0; part < parts; ++part) {
    DI_RETURN_IF_ERROR(pack(prefix,
                            {ops::WeightFormat::kF8Tile32, part_rows, cols, weight->data + part * part_rows * cols,
                             scale->data + part * (part_rows / 32) * (cols / 32)},
                            out.emplace_back()));
  }
  count(*weight);
  count(*scale);
  return Status();
}

Status WeightBinder::mxfp4(const std::string& prefix, int64_t rows, int64_t cols, ops::PackedWeight& out) {
  const StoredTensor* weight = nullptr;
  const StoredTensor* scale = nullptr;
  DI_RETURN_IF_ERROR(find(prefix + ".weight", DType::kI8, {rows, cols / 2}, weight));
  DI_RETURN_IF_ERROR(find(prefix + ".scale", DType::kF8E8m0, {rows, cols / 32}, scale));
  DI_RETURN_IF_ERROR(pack(prefix, {ops::WeightFormat::kMxfp4, rows, cols, weight->data, scale->data}, out));
  count(*weight);
  count(*scale);
  return Status();
}

Status WeightBinder::bf16(const std::string& name, int64_t rows, int64_t cols, ops::PackedWeight& out) {
  const StoredTensor* weight = nullptr;
  DI_RETURN_IF_ERROR(find(name, DType::kBf16, {rows, cols}, weight));
  DI_RETURN_IF_ERROR(pack(name, {ops::WeightFormat::kBf16, rows, cols, weight->data, nullptr}, out));
  count(*weight);
  return Status();
}

Status WeightBinder::f32(const std::string& name, int64_t rows, int64_t cols, ops::PackedWeight& out) {
  const StoredTensor* weight = nullptr;
  DI_RETURN_IF_ERROR(find(name, DType::kF32, {rows, cols}, weight));
  DI_RETURN_IF_ERROR(pack(name, {ops::WeightFormat::kF32, rows, cols, weight->data, nullptr}, out));
  count(*weight);
  return Status();
}

Status WeightBinder::floats(const std::string& name, std::initializer_list<int64_t> shape, DeviceArray<float>& out) {
  std::vector<float> values;
  DI_RETURN_IF_ERROR(host_floats(name, shape, values));
  return upload(values, out);
}

Status WeightBinder::upload(const std::vector<float>& values, DeviceArray<float>& out) {
  DI_ASSIGN_OR_RETURN(out, DeviceArray<float>::make(device_, stream_, values));
  return Status();
}

Status WeightBinder::host_floats(const std::string& name, std::initializer_list<int64_t> shape,
                                 std::vector<float>& out) {
  const StoredTensor* present = checkpoint_.find(name);
  const DType dtype = present != nullptr && present->dtype == DType::kBf16 ? DType::kBf16 : DType::kF32;
  const StoredTensor* tensor = nullptr;
  DI_RETURN_IF_ERROR(find(name, dtype, shape, tensor));
  const int64_t size = static_cast<int64_t>(tensor->bytes) / (dtype == DType::kBf16 ? 2 : 4);
  out.resize(size);
  if (dtype == DType::kF32) {
    std::memcpy(out.data(), tensor->data, tensor->bytes);
  } else {
    for (int64_t i = 0; i < size; ++i) {
      uint16_t bits;
      std::memcpy(&bits, tensor->data + 2 * i, 2);
      out[i] = to_float(BFloat16{bits});
    }
  }
  count(*tensor);
  return Status();
}

}  // namespace deepinfer
