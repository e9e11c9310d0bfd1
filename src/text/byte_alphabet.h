// The byte alphabet of byte-level BPE: each byte is spelled by one printable character in vocabulary files.
//
// Bytes 33-126, 161-172 and 174-255 are spelled by the character of that number; the other 68 bytes, in ascending
// order, by U+0100, U+0101, ... Inside the program tokens are bytes; the spelling exists in files only.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace deepinfer {

// The spelling of any bytes, as UTF-8.
std::string spell_bytes(std::string_view bytes);

// Appends the bytes that `spelling` (well-formed UTF-8) stands for; false, with `out` unchanged, if one of its
// characters is not of the alphabet.
bool append_spelled_bytes(std::string_view spelling, std::string& out);

}  // namespace deepinfer
