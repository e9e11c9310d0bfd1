// Any bytes as text: encoding loses nothing, ordinary encoding gives no control token, and the two pre-tokenisers
// agree.
#include <unicode/uchar.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "text/detokenizer.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

using namespace deepinfer;  // NOLINT: a program of its own

namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer golden = Tokenizer::load(DEEPINFER_TESTS_DIR "/golden/tokenizer/tokenizer.json").value();
  return golden;
}

const Pretokenizer& pretokenizer(Pretokenizer::Path path) {
  static const auto make = [](Pretokenizer::Path which) {
    std::vector<SplitPattern> stages;
    for (const std::string_view pattern : kDeepseekPatterns) stages.push_back({true, std::string(pattern)});
    return Pretokenizer::create(stages, which).value();
  };
  static const Pretokenizer fastest = make(Pretokenizer::Path::kFastest), regex = make(Pretokenizer::Path::kRegexOnly);
  return path == Pretokenizer::Path::kFastest ? fastest : regex;
}

std::string decode(const std::vector<int32_t>& ids) {
  Detokenizer detokenizer(tokenizer());
  std::string text;
  for (const int32_t id : ids) text += detokenizer.push(id);
  return text + detokenizer.finish();
}

std::vector<size_t> all_ends(const Pretokenizer& from, const std::string& text) {
  std::vector<size_t> all, ends;
  while (all.empty() || all.back() < text.size()) {
    from.next_pieces(text, all.empty() ? 0 : all.back(), ends);
    all.insert(all.end(), ends.begin(), ends.end());
  }
  return all;
}

// The tables of the regular expressions are of Unicode 14.
bool is_known_to_both(const std::string& text) {
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = decode_valid_utf8(text.data() + i);
    UVersionInfo age;
    u_charAge(static_cast<UChar32>(c.value), age);
    if (age[0] > 14) return false;
    i += c.num_bytes;
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const std::string text = replace_invalid_utf8(bytes);
  DI_CHECK(is_valid_utf8(text), "replacement left something invalid");
  DI_CHECK(decode(tokenizer().encode(bytes)) == text, "encode lost text");
  const std::vector<int32_t> ordinary = tokenizer().encode_ordinary(bytes);
  DI_CHECK(decode(ordinary) == text, "encode_ordinary lost text");
  for (const int32_t id : ordinary) DI_CHECK(!tokenizer().is_control(id), "control token {}", id);
  if (text.empty() || !is_known_to_both(text)) return 0;
  DI_CHECK(all_ends(pretokenizer(Pretokenizer::Path::kFastest), text) ==
               all_ends(pretokenizer(Pretokenizer::Path::kRegexOnly), text),
           "the scanner cuts otherwise than the expressions");
  return 0;
}
