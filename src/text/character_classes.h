// CharacterClasses: for every Unicode code point the few facts that pre-tokenisation asks about, as one byte.
//
// Filled once from ICU, so the categories are those of the Unicode version of the ICU in use (15.0 for ICU 72). A code
// point that version does not know has no class, so another ICU can only change how characters younger than its tables
// are cut. Immutable afterwards, any thread.
#pragma once

#include <cstdint>
#include <vector>

namespace deepinfer {

enum CharacterClass : uint8_t {
  kLetterOrMark = 1,         // general categories L and M
  kLetter = 2,               // L
  kPunctuationOrSymbol = 4,  // P and S
  kNumber = 8,               // N
  kWhiteSpace = 16,          // the property White_Space
  kLineEnd = 32,             // CR and LF
  kHanOrKana = 64,           // U+4E00-U+9FA5, U+3040-U+30FF, assigned or not
};

class CharacterClasses {
 public:
  CharacterClasses();

  // Requires: a Unicode scalar value.
  uint8_t of(char32_t code_point) const { return classes_[code_point]; }

 private:
  std::vector<uint8_t> classes_;  // [0x110000]
};

}  // namespace deepinfer
