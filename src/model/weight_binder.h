// WeightBinder: one tensor at a time from the checkpoint into packed or widened form, with the checks that belong to
// it.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "model/weights.h"

namespace deepinfer {

class WeightBinder {
 public:
  WeightBinder(Device& device, Stream& stream, const Checkpoint& checkpoint, uint64_t total_bytes,
               const LoadProgress& progress)
      : device_(device), stream_(stream), checkpoint_(checkpoint), total_bytes_(total_bytes), progress_(progress) {}

  // `prefix`.weight with its `prefix`.scale: E4M3 [rows, cols] in 32x32 tiles.
  Status fp8(const std::string& prefix, int64_t rows, int64_t cols, ops::PackedWeight& out);
  // The same, cut into `parts` of rows / parts each. Requires: rows % (32 * parts) == 0.
  Status fp8_parts(const std::string& prefix, int64_t rows, int64_t cols, int64_t parts,
                   std::vector<ops::PackedWeight>& out);
  // E2M1 pairs [rows, cols / 2] with a scale a row and 32 columns.
  Status mxfp4(const std::string& prefix, int64_t rows, int64_t cols, ops::PackedWeight& out);
  Status bf16(const std::string& name, int64_t rows, int64_t cols, ops::PackedWeight& out);
  Status f32(const std::string& name, int64_t rows, int64_t cols, ops::PackedWeight& out);
  // A BF16 or F32 tensor of this shape as floats, on the device or on the host.
  Status floats(const std::string& name, std::initializer_list<int64_t> shape, DeviceArray<float>& out);
  Status host_floats(const std::string& name, std::initializer_list<int64_t> shape, std::vector<float>& out);
  Status upload(const std::vector<float>& values, DeviceArray<float>& out);
  // Requires: the bank is complete and stays where it is.
  void prepare(ops::ExpertBank& bank) { ops::prepare_experts(stream_, bank); }
  // A tensor that stays in the file, its values checked.
  Status find(const std::string& name, DType dtype, std::initializer_list<int64_t> shape, const StoredTensor*& out);
  // A tensor too large to read whole: only type and shape are checked. Who reads a row of it checks its values.
  Status mapped(const std::string& name, DType dtype, std::initializer_list<int64_t> shape, const StoredTensor*& out);

 private:
  void count(const StoredTensor& tensor);
  Status pack(const std::string& name, const ops::WeightSource& source, ops::PackedWeight& out);

  Device& device_;
  Stream& stream_;
  const Checkpoint& checkpoint_;
  uint64_t total_bytes_;
  uint64_t done_bytes_ = 0;
  const LoadProgress& progress_;
};

}  // namespace deepinfer
