// One safetensors file: 8 bytes of header length (little-endian), a JSON header, then the tensors' bytes without gaps.
//
// Parsing checks everything the header claims against the file (lengths, types, ranges, overlaps, sizes), reads no
// tensor data, and returns views. Values are little-endian and row-major; a tensor may start at any address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/dtype.h"

namespace deepinfer {

struct StoredTensor {
  std::string name;
  DType dtype = DType::kBf16;
  std::vector<int64_t> shape;       // each >= 0, outermost first
  const std::byte* data = nullptr;  // into the mapped file, any alignment
  uint64_t bytes = 0;
  int shard = 0;  // index into Checkpoint::shards()

  std::span<const std::byte> contents() const { return {data, static_cast<size_t>(bytes)}; }
};

inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;  // the limit of the format

// The tensors of `file` (the whole file) in the order of their bytes; `file_name` is for messages.
Result<std::vector<StoredTensor>> parse_safetensors(std::string_view file_name, std::span<const std::byte> file);

}  // namespace deepinfer
