#include "text/deepseek_scanner.h"

#include "text/utf8.h"

namespace deepinfer {
namespace {

// The first two expressions cut the text into regions of numbers, of Han or kana, and of everything else. No match of
// the third crosses a region's border, not even by lookahead, so each of its loops compares these bits too.
constexpr uint8_t kRegion = kNumber | kHanOrKana;

bool is_ascii_letter(char c) { return static_cast<unsigned char>((c | 0x20) - 'a') < 26; }

}  // namespace

inline DeepseekScanner::Character DeepseekScanner::at(const char* p, const char* end) const {
  if (p == end) return {0, 0};
  const auto byte = static_cast<unsigned char>(*p);
  if (byte < 0x80) return {classes_.of(byte), 1};
  const CodePoint c = decode_valid_utf8(p);
  return {classes_.of(c.value), static_cast<uint8_t>(c.num_bytes)};
}

// Passes characters whose classes, within `mask`, are exactly `wanted` (not zero, so that the end of the text stops
// it).
inline const char* DeepseekScanner::skip_while(const char* p, const char* end, uint8_t mask, uint8_t wanted) const {
  for (;;) {
    const Character c = at(p, end);
    if ((c.classes & mask) != wanted) return p;
    p += c.num_bytes;
  }
}

// \s*[\r\n]+ | \s+(?!\S) | \s+ at a white-space character. White space lies in no numeric or Han region.
const char* DeepseekScanner::match_white_space(const char* p, const char* end) const {
  const char* after_line_end = nullptr;
  const char* last = p;  // the run's last character
  const char* run_end = p;
  Character c = at(p, end);
  for (; c.classes & kWhiteSpace; c = at(run_end, end)) {
    last = run_end;
    run_end += c.num_bytes;
    if (c.classes & kLineEnd) after_line_end = run_end;
  }
  if (after_line_end != nullptr) return after_line_end;
  const bool is_region_end = c.num_bytes == 0 || (c.classes & kRegion) != 0;
  return is_region_end || last == p ? run_end : last;
}

// The end of the third expression's match at p, or null. `first` is the character at p and not a number.
inline const char* DeepseekScanner::match(const char* p, const char* end, Character first) const {
  const uint8_t region = first.classes & kRegion;
  const uint8_t letter_mask = kLetterOrMark | kRegion;
  const uint8_t letter = kLetterOrMark | region;
  if (first.classes & kLetterOrMark) return skip_while(p, end, letter_mask, letter);

  const char* next = p + first.num_bytes;
  const uint8_t punctuation_mask = kPunctuationOrSymbol | kRegion;
  const uint8_t punctuation = kPunctuationOrSymbol | region;
  if (first.classes & kPunctuationOrSymbol) {
    if (first.num_bytes == 1 && next != end && is_ascii_letter(*next)) {
      do ++next;
      while (next != end && is_ascii_letter(*next));
      return next;
    }
    next = skip_while(next, end, punctuation_mask, punctuation);
    return region == 0 ? skip_while(next, end, kLineEnd, kLineEnd) : next;
  }

  const uint8_t next_classes = at(next, end).classes;
  if (!(first.classes & kLineEnd) && (next_classes & letter_mask) == letter) {
    return skip_while(next, end, letter_mask, letter);
  }
  if (*p == ' ' && (next_classes & punctuation_mask) == punctuation) {
    return skip_while(skip_while(next, end, punctuation_mask, punctuation), end, kLineEnd, kLineEnd);
  }
  return first.classes & kWhiteSpace ? match_white_space(p, end) : nullptr;
}

size_t DeepseekScanner::piece_end(std::string_view text, size_t begin) const {
  const char* p = text.data() + begin;
  const char* const end = text.data() + text.size();
  Character c = at(p, end);
  if (c.classes & kNumber) {
    for (int i = 0; i < 3 && (c.classes & kNumber); ++i, c = at(p, end)) p += c.num_bytes;
    return p - text.data();
  }
  const uint8_t region = c.classes & kRegion;
  if (const char* match_end = match(p, end, c)) return match_end - text.data();
  // A gap: everything up to where the next match begins or the region ends.
  do {
    p += c.num_bytes;
    c = at(p, end);
  } while (c.num_bytes != 0 && (c.classes & kRegion) == region && match(p, end, c) == nullptr);
  return p - text.data();
}

}  // namespace deepinfer
