// DeepseekScanner: the pre-tokeniser of DeepSeek's V3 and V4 tokenizers, written by hand for speed.
//
// It cuts text exactly as the three regular expressions below do when applied one after the other, each to the pieces
// of the one before, matches and gaps alike becoming pieces; RegexSplitter is its oracle in the tests. It differs from
// that oracle only in the Unicode version of the categories (see character_classes.h and regex_splitter.h).
// Immutable, any thread.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "text/character_classes.h"

namespace deepinfer {

inline constexpr std::string_view kDeepseekPatterns[3] = {
    "\\p{N}{1,3}",
    "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*"
    "|\\s*[\r\n]+"
    "|\\s+(?!\\S)"
    "|\\s+",
};

class DeepseekScanner {
 public:
  // The end of the piece that begins at `begin`. Requires: begin < text.size(), a boundary that this function returned
  // or 0; text is well-formed UTF-8.
  size_t piece_end(std::string_view text, size_t begin) const;

 private:
  struct Character {
    uint8_t classes;
    uint8_t num_bytes;  // 0 at the end of the text
  };

  Character at(const char* p, const char* end) const;
  const char* skip_while(const char* p, const char* end, uint8_t mask, uint8_t wanted) const;
  const char* match(const char* p, const char* end, Character first) const;
  const char* match_white_space(const char* p, const char* end) const;

  CharacterClasses classes_;
};

}  // namespace deepinfer
