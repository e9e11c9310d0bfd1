// Pretokenizer: cuts text into the pieces inside which merges happen.
//
// The stages of a tokenizer file run one after the other, each on every piece of the one before. Files with DeepSeek's
// three expressions get DeepseekScanner, all others RegexSplitter. Immutable, any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/deepseek_scanner.h"
#include "text/regex_splitter.h"

namespace deepinfer {

struct SplitPattern {
  bool is_regex = true;
  std::string text;

  bool operator==(const SplitPattern&) const = default;
};

class Pretokenizer {
 public:
  enum class Path { kFastest, kRegexOnly };

  // kRegexOnly is for tests, which compare the two paths.
  static Result<Pretokenizer> create(const std::vector<SplitPattern>& stages, Path path = Path::kFastest);

  // Replaces `ends` by the ends of the pieces that follow `begin`, at least one, as offsets into `text`; callers go on
  // from the last one until it is text.size(). Requires: well-formed UTF-8; begin < text.size(), 0 or such an end.
  void next_pieces(std::string_view text, size_t begin, std::vector<size_t>& ends) const;

 private:
  void split_in_stages(std::string_view text, std::vector<size_t>& ends) const;

  std::optional<DeepseekScanner> scanner_;
  std::vector<RegexSplitter> stages_;
};

}  // namespace deepinfer
