#include "text/added_tokens.h"

#include <algorithm>

namespace deepinfer {
namespace {

unsigned char byte_at(std::string_view text, size_t i) { return static_cast<unsigned char>(text[i]); }

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::sort(tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) { return a.text < b.text; });
  for (uint32_t i = 0; i < tokens_.size(); ++i) {
    Range& range = tokens_by_first_byte_[byte_at(tokens_[i].text, 0)];
    if (range.begin == range.end) range = {i, i};
    range.end = i + 1;
  }
}

// Narrows the range of tokens that agree with `text` byte by byte; of those, a token that ends here sorts first.
const AddedToken* AddedTokenMatcher::longest_prefix_of(std::string_view text) const {
  const Range range = tokens_by_first_byte_[byte_at(text, 0)];
  auto begin = tokens_.begin() + range.begin;
  auto end = tokens_.begin() + range.end;
  const AddedToken* longest = nullptr;
  for (size_t length = 1; begin != end; ++length) {
    if (begin->text.size() == length) longest = &*begin++;
    if (length == text.size()) break;
    const unsigned char next = byte_at(text, length);
    begin = std::partition_point(begin, end, [&](const AddedToken& t) { return byte_at(t.text, length) < next; });
    end = std::partition_point(begin, end, [&](const AddedToken& t) { return byte_at(t.text, length) == next; });
  }
  return longest;
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::find(std::string_view text, size_t begin) const {
  for (size_t i = begin; i < text.size(); ++i) {
    const Range range = tokens_by_first_byte_[byte_at(text, i)];
    if (range.begin == range.end) continue;
    if (const AddedToken* token = longest_prefix_of(text.substr(i))) return Match{i, i + token->text.size(), token->id};
  }
  return std::nullopt;
}

}  // namespace deepinfer
