// Detokenizer: token ids to text, as they arrive.
//
// Tokens may end inside a character: what could still become one is kept for the next token. Bytes that cannot are
// replaced by U+FFFD (see utf8.h), so the texts of any sequence of pushes and `finish` joined are the decoding of all
// bytes together. One per sequence, not shared between threads; the tokenizer has to outlive it.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace deepinfer {

class Detokenizer {
 public:
  // kShow keeps the literal spelling of control tokens in the text: the output parser needs them.
  enum class Controls { kShow, kHide };

  explicit Detokenizer(const Tokenizer& tokenizer, Controls controls = Controls::kShow)
      : tokenizer_(&tokenizer), controls_(controls) {}

  // The text that became certain. Requires: an id of the tokenizer.
  std::string push(int32_t id);
  // The rest: one U+FFFD if a character was left incomplete. The object is as new afterwards.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  Controls controls_;
  std::string tail_;  // an incomplete character, at most three bytes
};

}  // namespace deepinfer
