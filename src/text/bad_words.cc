#include "text/bad_words.h"

#include <algorithm>
#include <set>

namespace deepinfer {

std::vector<std::vector<int32_t>> bad_word_tokens(const Tokenizer& tokenizer, std::span<const std::string> words) {
  std::vector<std::vector<int32_t>> sequences;
  std::set<std::vector<int32_t>> known;
  const auto add = [&](std::vector<int32_t> tokens) {
    if (known.insert(tokens).second) sequences.push_back(std::move(tokens));
  };
  for (const std::string& word : words) {
    const size_t begin = word.find_first_not_of(' ');
    const std::string bare = begin == std::string::npos ? word : word.substr(begin);
    for (const std::string& text : {bare, " " + bare}) {
      add(tokenizer.encode_ordinary(text));
      add(tokenizer.encode(text));
    }
  }
  return sequences;
}

}  // namespace deepinfer
