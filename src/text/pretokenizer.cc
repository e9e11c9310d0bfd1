#include "text/pretokenizer.h"

#include <algorithm>

namespace deepinfer {
namespace {

constexpr size_t kPiecesPerCall = 512;  // of the scanner, so that the ends stay in the first-level cache

bool are_deepseek_patterns(const std::vector<SplitPattern>& stages) {
  return std::equal(
      stages.begin(), stages.end(), std::begin(kDeepseekPatterns), std::end(kDeepseekPatterns),
      [](const SplitPattern& stage, std::string_view text) { return stage.is_regex && stage.text == text; });
}

}  // namespace

Result<Pretokenizer> Pretokenizer::create(const std::vector<SplitPattern>& stages, Path path) {
  Pretokenizer pretokenizer;
  if (path == Path::kFastest && are_deepseek_patterns(stages)) {
    pretokenizer.scanner_.emplace();
    return pretokenizer;
  }
  for (const SplitPattern& stage : stages) {
    DI_ASSIGN_OR_RETURN(RegexSplitter splitter, stage.is_regex ? RegexSplitter::compile(stage.text)
                                                               : RegexSplitter::compile_literal(stage.text));
    pretokenizer.stages_.push_back(std::move(splitter));
  }
  return pretokenizer;
}

void Pretokenizer::next_pieces(std::string_view text, size_t begin, std::vector<size_t>& ends) const {
  ends.clear();
  if (!scanner_) return split_in_stages(text, ends);
  while (begin < text.size() && ends.size() < kPiecesPerCall) {
    begin = scanner_->piece_end(text, begin);
    ends.push_back(begin);
  }
}

void Pretokenizer::split_in_stages(std::string_view text, std::vector<size_t>& ends) const {
  ends.push_back(text.size());
  std::vector<size_t> finer;
  for (const RegexSplitter& stage : stages_) {
    finer.clear();
    size_t begin = 0;
    for (const size_t end : ends) {
      stage.split(text, begin, end, finer);
      begin = end;
    }
    ends.swap(finer);
  }
}

}  // namespace deepinfer
