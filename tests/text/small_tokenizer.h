// A tokenizer.json of the 256 bytes and the control tokens named: what a small model for tests may have.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/byte_alphabet.h"
#include "text/json_text.h"
#include "text/tokenizer.h"

namespace deepinfer {

inline std::string small_tokenizer_json(const std::vector<std::string_view>& controls) {
  std::string vocabulary, added;
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelling;
    append_json_escaped(spell_bytes(std::string(1, static_cast<char>(byte))), spelling);
    vocabulary += fmt::format("{}\"{}\":{}", byte ? "," : "", spelling, byte);
  }
  int id = 256;
  for (const std::string_view control : controls) {
    added += fmt::format("{}{{\"id\":{},\"content\":\"{}\"}}", id > 256 ? "," : "", id, control);
    ++id;
  }
  return fmt::format(
      "{{\"added_tokens\":[{}],\"pre_tokenizer\":{{\"type\":\"ByteLevel\",\"add_prefix_space\":false}},"
      "\"model\":{{\"type\":\"BPE\",\"vocab\":{{{}}},\"merges\":[]}}}}",
      added, vocabulary);
}

inline Tokenizer small_tokenizer(const std::vector<std::string_view>& controls) {
  return Tokenizer::parse(small_tokenizer_json(controls)).value();
}

}  // namespace deepinfer
