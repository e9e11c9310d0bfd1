#include "checkpoint/safetensors.h"

#include <algorithm>

#include <simdjson.h>

#include "checkpoint/shown.h"

namespace deepinfer {
namespace {

constexpr size_t kMaxRank = 8;
constexpr std::string_view kDamaged = "the file is damaged or incomplete; download it again";

// What one tensor's header entry is checked against, and how messages name it.
struct Entry {
  std::string_view file_name;
  std::string_view tensor;
  simdjson::dom::object fields;

  std::string label() const { return fmt::format("{}: tensor {}", file_name, shown(tensor)); }
};

Result<uint64_t> header_length(std::string_view file_name, std::span<const std::byte> file) {
  if (file.size() < 8)
    return invalid_input("{}: {} bytes are too few for a safetensors file; {}", file_name, file.size(), kDamaged);
  uint64_t length = 0;
  for (int i = 0; i < 8; ++i) length |= std::to_integer<uint64_t>(file[i]) << (8 * i);
  if (length == 0) return invalid_input("{}: the header length is 0; {}", file_name, kDamaged);
  if (length > kMaxSafetensorsHeaderBytes)
    return invalid_input("{}: the header length is {}, over the format's limit of {}: not a safetensors file, or {}",
                         file_name, length, kMaxSafetensorsHeaderBytes, kDamaged);
  if (length > file.size() - 8)
    return invalid_input("{}: the header length is {}, but only {} bytes follow it; {}", file_name, length,
                         file.size() - 8, kDamaged);
  return length;
}

Result<DType> parse_dtype(const Entry& entry) {
  std::string_view name;
  if (entry.fields["dtype"].get(name))
    return invalid_input("{}: the header has no string \"dtype\" for it; {}", entry.label(), kDamaged);
  const auto dtype = dtype_from_name(name);
  if (!dtype)
    return unsupported("{}: dtype {} is unknown; convert the tensor to a dtype of the safetensors format",
                       entry.label(), shown(name));
  return *dtype;
}

Result<std::vector<int64_t>> parse_shape(const Entry& entry) {
  simdjson::dom::array sizes;
  if (entry.fields["shape"].get(sizes))
    return invalid_input("{}: the header has no array \"shape\" for it; {}", entry.label(), kDamaged);
  if (sizes.size() > kMaxRank)
    return invalid_input("{}: {} dimensions, at most {} are supported; {}", entry.label(), sizes.size(), kMaxRank,
                         kDamaged);
  std::vector<int64_t> shape;
  for (const simdjson::dom::element size : sizes) {
    int64_t value = 0;
    if (size.get(value) || value < 0)
      return invalid_input("{}: shape entry {} is not an integer from 0 to 2^63-1; {}", entry.label(), shape.size(),
                           kDamaged);
    shape.push_back(value);
  }
  return shape;
}

// The bytes that dtype and shape ask for, or an error if they do not fit 64 bits or are no whole number of bytes.
Result<uint64_t> bytes_for(const Entry& entry, DType dtype, const std::vector<int64_t>& shape) {
  uint64_t bits = static_cast<uint64_t>(bits_of(dtype));
  for (const int64_t size : shape)
    if (__builtin_mul_overflow(bits, static_cast<uint64_t>(size), &bits))
      return invalid_input("{}: shape {} is too large to exist; {}", entry.label(), shown(shape), kDamaged);
  if (bits % 8 != 0)
    return invalid_input("{}: {} values of {} are not a whole number of bytes; {}", entry.label(), shown(shape),
                         name_of(dtype), kDamaged);
  return bits / 8;
}

struct Range {
  uint64_t begin, end;  // bytes from the start of the data
};

Result<Range> parse_offsets(const Entry& entry, uint64_t data_bytes) {
  simdjson::dom::array pair;
  Range range{};
  if (entry.fields["data_offsets"].get(pair) || pair.size() != 2 || pair.at(0).get(range.begin) ||
      pair.at(1).get(range.end))
    return invalid_input("{}: \"data_offsets\" is not a pair of non-negative integers; {}", entry.label(), kDamaged);
  if (range.begin > range.end)
    return invalid_input("{}: its bytes end at {} before they begin at {}; {}", entry.label(), range.end, range.begin,
                         kDamaged);
  if (range.end > data_bytes)
    return invalid_input(
        "{}: its bytes end at {}, but the file holds {} bytes of data: it is truncated; download it again",
        entry.label(), range.end, data_bytes);
  return range;
}

Result<StoredTensor> parse_entry(const Entry& entry, std::span<const std::byte> data) {
  StoredTensor tensor;
  if (entry.tensor.empty())
    return invalid_input("{}: a tensor has the empty string as its name; {}", entry.file_name, kDamaged);
  tensor.name = entry.tensor;
  DI_ASSIGN_OR_RETURN(tensor.dtype, parse_dtype(entry));
  DI_ASSIGN_OR_RETURN(tensor.shape, parse_shape(entry));
  DI_ASSIGN_OR_RETURN(const Range range, parse_offsets(entry, data.size()));
  DI_ASSIGN_OR_RETURN(tensor.bytes, bytes_for(entry, tensor.dtype, tensor.shape));
  if (tensor.bytes != range.end - range.begin)
    return invalid_input("{}: {} of {} needs {} bytes, but its offsets span {}; {}", entry.label(),
                         name_of(tensor.dtype), shown(tensor.shape), tensor.bytes, range.end - range.begin, kDamaged);
  tensor.data = data.data() + range.begin;
  return tensor;
}

// The format allows neither overlaps nor gaps, so either one shows a damaged file. Requires: sorted by data.
Status check_layout(std::string_view file_name, const std::vector<StoredTensor>& tensors,
                    std::span<const std::byte> data) {
  const std::byte* expected = data.data();
  const StoredTensor* previous = nullptr;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.data < expected)
      return invalid_input("{}: the bytes of tensors {} and {} overlap; {}", file_name, shown(previous->name),
                           shown(tensor.name), kDamaged);
    if (tensor.data > expected)
      return invalid_input("{}: {} bytes before tensor {} belong to no tensor; {}", file_name, tensor.data - expected,
                           shown(tensor.name), kDamaged);
    expected = tensor.data + tensor.bytes;
    previous = &tensor;
  }
  const auto left = data.data() + data.size() - expected;
  if (left != 0)
    return invalid_input("{}: {} bytes after the last tensor belong to no tensor; {}", file_name, left, kDamaged);
  return {};
}

Status check_names(std::string_view file_name, const std::vector<StoredTensor>& tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const StoredTensor& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twin = std::adjacent_find(names.begin(), names.end());
  if (twin != names.end())
    return invalid_input("{}: tensor {} appears twice in the header; {}", file_name, shown(*twin), kDamaged);
  return {};
}

Status json_error(std::string_view file_name, simdjson::error_code error) {
  if (error == simdjson::MEMALLOC)
    return Status(ErrorCode::kOutOfMemory, fmt::format("{}: no memory to parse the header", file_name));
  if (error == simdjson::UTF8_ERROR)
    return invalid_input("{}: the header (a tensor's name?) is not valid UTF-8; {}", file_name, kDamaged);
  return invalid_input("{}: the header is not valid JSON ({}); {}", file_name, simdjson::error_message(error),
                       kDamaged);
}

}  // namespace

Result<std::vector<StoredTensor>> parse_safetensors(std::string_view file_name, std::span<const std::byte> file) {
  DI_ASSIGN_OR_RETURN(const uint64_t length, header_length(file_name, file));
  const std::span<const std::byte> data = file.subspan(8 + length);
  const simdjson::padded_string json(reinterpret_cast<const char*>(file.data()) + 8, length);
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  if (const auto error = parser.parse(json).get(root)) return json_error(file_name, error);
  simdjson::dom::object header;
  if (root.get(header)) return invalid_input("{}: the header is not a JSON object; {}", file_name, kDamaged);

  std::vector<StoredTensor> tensors;
  for (const auto [name, value] : header) {
    simdjson::dom::object fields;
    if (value.get(fields))
      return invalid_input("{}: the header entry {} is not an object; {}", file_name, shown(name), kDamaged);
    if (name == "__metadata__") continue;
    DI_ASSIGN_OR_RETURN(StoredTensor tensor, parse_entry({file_name, name, fields}, data));
    tensors.push_back(std::move(tensor));
  }
  DI_RETURN_IF_ERROR(check_names(file_name, tensors));
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return a.data != b.data ? a.data < b.data : a.bytes < b.bytes;
  });
  DI_RETURN_IF_ERROR(check_layout(file_name, tensors, data));
  return tensors;
}

}  // namespace deepinfer
