#include "text/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "text/utf8.h"

namespace deepinfer {
namespace {

constexpr int kNumCharacters = 256 + 68;  // no spelling lies above U+0143
constexpr int16_t kNoByte = -1;

struct Alphabet {
  std::array<char32_t, 256> character_of_byte;
  std::array<int16_t, kNumCharacters> byte_of_character;
};

constexpr bool spells_itself(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

constexpr Alphabet make_alphabet() {
  Alphabet alphabet{};
  for (int16_t& byte : alphabet.byte_of_character) byte = kNoByte;
  char32_t next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t character = spells_itself(byte) ? static_cast<char32_t>(byte) : next++;
    alphabet.character_of_byte[byte] = character;
    alphabet.byte_of_character[character] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();
static_assert(kAlphabet.character_of_byte[' '] == 0x120 && kAlphabet.character_of_byte[173] == kNumCharacters - 1);

}  // namespace

std::string spell_bytes(std::string_view bytes) {
  std::string spelling;
  spelling.reserve(bytes.size());
  for (const char byte : bytes) append_utf8(kAlphabet.character_of_byte[static_cast<unsigned char>(byte)], spelling);
  return spelling;
}

bool append_spelled_bytes(std::string_view spelling, std::string& out) {
  const size_t old_size = out.size();
  for (size_t i = 0; i < spelling.size();) {
    const CodePoint c = decode_valid_utf8(spelling.data() + i);
    if (c.value >= kNumCharacters || kAlphabet.byte_of_character[c.value] == kNoByte) {
      out.resize(old_size);
      return false;
    }
    out.push_back(static_cast<char>(kAlphabet.byte_of_character[c.value]));
    i += c.num_bytes;
  }
  return true;
}

}  // namespace deepinfer
