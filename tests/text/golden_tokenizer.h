// The released tokenizer, loaded once per test program.
#pragma once

#include <gtest/gtest.h>

#include "text/tokenizer.h"

namespace deepinfer {

inline const Tokenizer& golden_tokenizer() {
  static const Result<Tokenizer> tokenizer = Tokenizer::load(DEEPINFER_TESTS_DIR "/golden/tokenizer/tokenizer.json");
  return tokenizer.value();
}

}  // namespace deepinfer
