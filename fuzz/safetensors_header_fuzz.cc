// Any bytes as a safetensors file: either a clear error, or tensors whose bytes lie inside of the file.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "checkpoint/safetensors.h"

namespace {

void parse_and_check(std::span<const std::byte> file) {
  const auto tensors = deepinfer::parse_safetensors("input", file);
  if (!tensors.ok()) {
    DI_CHECK(tensors.status().message().starts_with("input: "), "the message does not name the file");
    return;
  }
  uint64_t total = 0;
  for (const auto& tensor : *tensors) {
    DI_CHECK(tensor.data >= file.data() && tensor.data + tensor.bytes <= file.data() + file.size(),
             "outside of the file");
    total += tensor.bytes;
    uint64_t bits = static_cast<uint64_t>(deepinfer::bits_of(tensor.dtype));
    for (const int64_t size : tensor.shape) bits *= static_cast<uint64_t>(size);
    DI_CHECK(bits == 8 * tensor.bytes, "shape and bytes disagree");
    DI_CHECK(!tensor.name.empty(), "a tensor without a name");
  }
  DI_CHECK(total <= file.size(), "tensors overlap");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  parse_and_check(std::as_bytes(std::span(data, size)));
  // The same bytes as a header alone, in front of a little data: mutations need not keep the length right.
  constexpr size_t kDataBytes = 64;
  std::vector<std::byte> file(8 + size + kDataBytes);
  for (int i = 0; i < 8; ++i) file[i] = static_cast<std::byte>(uint64_t{size} >> (8 * i));
  if (size > 0) std::memcpy(file.data() + 8, data, size);
  parse_and_check(file);
  return 0;
}
