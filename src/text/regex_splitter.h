// RegexSplitter: one "Split, isolated" stage of a tokenizer file, on PCRE2 compiled to machine code.
//
// Patterns are written for the engine of the Python package (Oniguruma). Where both engines read a construct alike it
// is taken; \s means the property White_Space there and is translated (PCRE2's own \s also takes U+180E); escapes that
// mean something else here, and patterns that could match nothing, are refused by name. Categories are those of the
// PCRE2 in use: Unicode 14.0 for 10.42, so a character assigned later counts as unassigned.
// Immutable, any thread: scratch memory and the stack of compiled matching belong to the calling thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer {

class RegexSplitter {
 public:
  static Result<RegexSplitter> compile(const std::string& pattern);
  // A splitter at every occurrence of a fixed text. Requires: not empty.
  static Result<RegexSplitter> compile_literal(std::string_view text);

  // Appends to `ends` the ends of the pieces of text[begin, end), as offsets into `text`: matches and the gaps between
  // them. Lookahead and lookbehind see only this range. Requires: well-formed UTF-8, begin < end.
  void split(std::string_view text, size_t begin, size_t end, std::vector<size_t>& ends) const;

 private:
  struct FreeCode {
    void operator()(void* code) const;
  };

  explicit RegexSplitter(void* code) : code_(code) {}

  std::unique_ptr<void, FreeCode> code_;  // pcre2_code
};

}  // namespace deepinfer
