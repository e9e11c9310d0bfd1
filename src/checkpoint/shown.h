// How a string that came from a file is shown in a message: quoted, control characters escaped, cut when very long.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace deepinfer {

inline std::string shown(std::string_view text) {
  constexpr size_t kMaxShownBytes = 120;
  size_t length = text.size();
  if (length > kMaxShownBytes) {
    length = kMaxShownBytes;
    while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0) == 0x80) --length;  // not inside a character
  }
  std::string out = "\"";
  for (const char c : text.substr(0, length)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F || c == '"' || c == '\\')
      out += fmt::format("\\x{:02x}", byte);
    else
      out += c;
  }
  out += length < text.size() ? "...\"" : "\"";
  return out;
}

inline std::string shown(std::span<const int64_t> shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += fmt::format("{}{}", i ? ", " : "", shape[i]);
  return out + "]";
}

}  // namespace deepinfer
