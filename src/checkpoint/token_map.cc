#include "checkpoint/token_map.h"

#include <algorithm>

#include <simdjson.h>

#include "checkpoint/mapped_file.h"

namespace deepinfer {
namespace {

constexpr size_t kMaxBytes = size_t{512} << 20;
constexpr std::string_view kRemedy = "make it again from the tokenizer of this model";

}  // namespace

Result<std::vector<int32_t>> parse_token_map(std::string_view file_name, std::string_view text, int64_t vocab_size,
                                             int64_t compressed_vocab_size) {
  if (text.size() > kMaxBytes)
    return invalid_input("{}: {} bytes, expected at most {}; {}", file_name, text.size(), kMaxBytes, kRemedy);
  const simdjson::padded_string json(text);
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  if (const auto error = parser.parse(json).get(root))
    return invalid_input("{}: not valid JSON ({}); {}", file_name, simdjson::error_message(error), kRemedy);
  simdjson::dom::array array;
  if (root.get(array)) return invalid_input("{}: not an array of integers; {}", file_name, kRemedy);
  std::vector<int32_t> map;
  for (const simdjson::dom::element element : array) {
    int64_t id = 0;
    if (element.get(id) || id < 0 || id >= compressed_vocab_size)
      return invalid_input(
          "{}: entry {} is {}, expected an integer from 0 to {} (below engram_compressed_vocab_size); {}", file_name,
          map.size(), std::string(simdjson::minify(element)).substr(0, 40), compressed_vocab_size - 1, kRemedy);
    map.push_back(static_cast<int32_t>(id));
  }
  if (static_cast<int64_t>(map.size()) != vocab_size)
    return invalid_input("{}: {} entries, expected one for each of the {} tokens of vocab_size; {}", file_name,
                         map.size(), vocab_size, kRemedy);
  const int64_t largest = map.empty() ? -1 : *std::max_element(map.begin(), map.end());
  if (largest + 1 != compressed_vocab_size)
    return invalid_input("{}: the largest compressed id is {}, expected {} (engram_compressed_vocab_size - 1); {}",
                         file_name, largest, compressed_vocab_size - 1, kRemedy);
  return map;
}

Result<std::vector<int32_t>> read_token_map(const std::string& folder, int64_t vocab_size,
                                            int64_t compressed_vocab_size) {
  const std::string path = folder + "/token_map.json";
  auto file = MappedFile::open(path);
  if (!file.ok() && file.status().code() == ErrorCode::kNotFound)
    return not_found(
        "{} does not exist, but the model's Engram layers need it; make it from the tokenizer of this model", path);
  if (!file.ok()) return std::move(file).status();
  return parse_token_map(path, file->text(), vocab_size, compressed_vocab_size);
}

}  // namespace deepinfer
