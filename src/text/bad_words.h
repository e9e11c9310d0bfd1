// The token sequences that would write one of some words: what a sampler has to ban.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace deepinfer {

// The tokens of every word without its leading spaces, and of the same with one space before; each as ordinary text
// and, if it spells control tokens, as these. Without duplicates, in the order of the words. The same letters cut into
// other tokens are not among them: a model that insists can still spell the word out. A word of spaces alone is taken
// as is. Pure function, any thread. Requires: no empty word.
std::vector<std::vector<int32_t>> bad_word_tokens(const Tokenizer& tokenizer, std::span<const std::string> words);

}  // namespace deepinfer
