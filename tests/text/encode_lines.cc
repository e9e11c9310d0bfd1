// Encodes each line of the standard input, bytes in hexadecimal, and prints the ids: for compare_with_tokenizers.py.
//   encode_lines TOKENIZER.json
#include <charconv>
#include <iostream>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "text/tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const deepinfer::Result<deepinfer::Tokenizer> tokenizer = deepinfer::Tokenizer::load(argv[1]);
  if (!tokenizer.ok()) {
    fmt::print(stderr, "{}\n", tokenizer.status().message());
    return 1;
  }
  for (std::string line; std::getline(std::cin, line);) {
    std::string bytes;
    for (size_t i = 0; i + 1 < line.size(); i += 2) {
      unsigned byte = 0;
      std::from_chars(line.data() + i, line.data() + i + 2, byte, 16);
      bytes.push_back(static_cast<char>(byte));
    }
    fmt::print("{}\n", fmt::join(tokenizer->encode(bytes), " "));
  }
  return 0;
}
