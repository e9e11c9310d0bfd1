// Random text for property tests: mostly the characters that pre-tokenisation treats specially, and any bytes.
#pragma once

#include <random>
#include <string>

#include "text/utf8.h"

namespace deepinfer {

class RandomText {
 public:
  explicit RandomText(uint32_t seed) : engine_(seed) {}

  int below(int bound) { return static_cast<int>(engine_() % static_cast<uint32_t>(bound)); }

  char32_t code_point() {
    static constexpr char32_t kInteresting[] = {
        ' ',    ' ',    '\t',   '\n',   '\r',   '\v',    '\f',   0,      0x1C,   0x7F,   0x85,     0xA0,    0x1680,
        0x180E, 0x2003, 0x2028, 0x202F, 0x205F, 0x3000,  0x200B, 0xFEFF, '1',    '2',    0xB2,     0x0663,  0x2167,
        0x3007, 0x2460, 'a',    'Z',    'e',    0xE9,    0x0301, 0x0489, 0x20DD, 0x0915, 0x093E,   0x4E00,  0x9FA5,
        0x9FA6, 0x3041, 0x3040, 0x3099, 0x309B, 0x30A0,  0x30FB, 0x30FC, 0x30FF, 0x3100, '.',      '_',     '$',
        '^',    '`',    '-',    0x2014, 0x20AC, 0x1F600, 0xFF5C, 0x2581, 0xE000, 0x0378, 0x10FFFF, 0x20000, 0x1D7D8};
    switch (below(8)) {
      case 0:
        return static_cast<char32_t>(below(128));
      case 1:
        return static_cast<char32_t>(below(0x3000));
      case 2:
        return static_cast<char32_t>(0x2E80 + below(0x300));
      case 3: {
        const auto any = static_cast<char32_t>(below(0x110000 - 0x800));
        return any < 0xD800 ? any : any + 0x800;
      }
      default:
        return kInteresting[below(std::size(kInteresting))];
    }
  }

  std::string text(int max_code_points) {
    std::string out;
    for (int left = below(max_code_points + 1); left > 0; --left) append_utf8(code_point(), out);
    return out;
  }

  std::string bytes(int max_bytes) {
    std::string out;
    for (int left = below(max_bytes + 1); left > 0; --left) out.push_back(static_cast<char>(below(256)));
    return out;
  }

 private:
  std::mt19937 engine_;
};

}  // namespace deepinfer
