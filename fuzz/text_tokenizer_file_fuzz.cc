// Any bytes as tokenizer.json: either an error, or a tokenizer that loses nothing and builds a token map.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "text/detokenizer.h"
#include "text/engram_token_map.h"
#include "text/tokenizer.h"

using namespace deepinfer;  // NOLINT: a program of its own

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Result<Tokenizer> tokenizer = Tokenizer::parse({reinterpret_cast<const char*>(data), size});
  if (!tokenizer.ok()) {
    DI_CHECK(!tokenizer.status().message().empty(), "an error without a message");
    return 0;
  }
  // Short: the expressions of a file are trusted, and some take exponential time.
  const std::string text = "ab <x> 12\n\xE4\xB8\x80 c";
  for (const std::vector<int32_t>& ids : {tokenizer->encode(text), tokenizer->encode_ordinary(text)}) {
    Detokenizer detokenizer(*tokenizer);
    std::string decoded;
    for (const int32_t id : ids) decoded += detokenizer.push(id);
    decoded += detokenizer.finish();
    DI_CHECK(decoded == text, "{} became {}", text, decoded);
  }
  const Result<EngramTokenMap> map = build_engram_token_map(*tokenizer);
  DI_CHECK(map.ok() && map->compressed_ids.size() == static_cast<size_t>(tokenizer->vocab_size()), "no token map");
  return 0;
}
