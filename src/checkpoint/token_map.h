// token_map.json: the compressed id of every token id, an array in the model folder. Engram hashes compressed ids, so
// that spellings of one word share rows.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer {

// Checks: vocab_size entries, each in [0, compressed_vocab_size), and the largest is compressed_vocab_size - 1.
Result<std::vector<int32_t>> parse_token_map(std::string_view file_name, std::string_view text, int64_t vocab_size,
                                             int64_t compressed_vocab_size);
Result<std::vector<int32_t>> read_token_map(const std::string& folder, int64_t vocab_size,
                                            int64_t compressed_vocab_size);

}  // namespace deepinfer
