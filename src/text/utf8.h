// UTF-8: decoding of text known to be well formed, and replacement of what is not.
//
// Ill-formed input follows the "maximal subpart" practice of the Unicode standard, as Python's errors='replace' does:
// every longest prefix of a well-formed sequence that cannot be completed becomes one U+FFFD, every other stray byte
// one U+FFFD of its own. Pure functions, any thread.
#pragma once

#include <string>
#include <string_view>

namespace deepinfer {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

struct CodePoint {
  char32_t value;
  int num_bytes;
};

// Requires: `bytes` points at the first byte of a well-formed sequence.
inline CodePoint decode_valid_utf8(const char* bytes) {
  const auto* b = reinterpret_cast<const unsigned char*>(bytes);
  if (b[0] < 0x80) return {b[0], 1};
  if (b[0] < 0xE0) return {(b[0] & 0x1Fu) << 6 | (b[1] & 0x3Fu), 2};
  if (b[0] < 0xF0) return {(b[0] & 0x0Fu) << 12 | (b[1] & 0x3Fu) << 6 | (b[2] & 0x3Fu), 3};
  return {(b[0] & 0x07u) << 18 | (b[1] & 0x3Fu) << 12 | (b[2] & 0x3Fu) << 6 | (b[3] & 0x3Fu), 4};
}

enum class Utf8Kind {
  kValid,       // one well-formed sequence
  kInvalid,     // bytes that no continuation can complete
  kIncomplete,  // the text ends inside a sequence that is well formed so far
};

struct Utf8Unit {
  Utf8Kind kind;
  int num_bytes;
};

// The unit at the front. Requires: `bytes` is not empty.
Utf8Unit first_utf8_unit(std::string_view bytes);

bool is_valid_utf8(std::string_view bytes);

// A copy in which every invalid or incomplete unit is U+FFFD.
std::string replace_invalid_utf8(std::string_view bytes);

// Requires: a Unicode scalar value.
void append_utf8(char32_t code_point, std::string& out);

}  // namespace deepinfer
