#include "text/stop_strings.h"

#include <algorithm>

#include "base/check.h"
#include "text/utf8.h"

namespace deepinfer {
namespace {

// Bytes of the character that `text` ends inside of; 0 if it ends between two.
size_t num_bytes_of_cut_character(std::string_view text) {
  for (size_t num = 1; num <= std::min<size_t>(3, text.size()); ++num) {
    const Utf8Unit unit = first_utf8_unit(text.substr(text.size() - num));
    if (unit.kind == Utf8Kind::kIncomplete) return num;
  }
  return 0;
}

}  // namespace

// The failure function of Knuth, Morris and Pratt.
StopStrings::Pattern::Pattern(std::string bytes) : text(std::move(bytes)), border(text.size()) {
  for (size_t n = 1; n < text.size(); ++n) {
    int32_t shorter = border[n - 1];
    while (shorter > 0 && text[n] != text[shorter]) shorter = border[shorter - 1];
    border[n] = shorter + (text[n] == text[shorter]);
  }
}

bool StopStrings::Pattern::take(char byte) {
  while (length > 0 && text[length] != byte) length = border[length - 1];
  length += text[length] == byte;
  return length == text.size();
}

StopStrings::StopStrings(std::span<const std::string> stops, bool include_in_output)
    : include_in_output_(include_in_output) {
  for (const std::string& stop : stops) {
    DI_CHECK(!stop.empty(), "an empty stop string");
    patterns_.emplace_back(replace_invalid_utf8(stop));
  }
}

size_t StopStrings::num_uncertain() const {
  size_t num = 0;
  for (const Pattern& pattern : patterns_) num = std::max(num, pattern.length);
  num = std::min(num, held_.size());
  return num + num_bytes_of_cut_character(std::string_view(held_).substr(0, held_.size() - num));
}

StopStrings::Outcome StopStrings::push(std::string_view text) {
  if (is_stopped_) return {};
  for (size_t i = 0; i < text.size(); ++i) {
    std::optional<size_t> met;
    for (size_t p = 0; p < patterns_.size(); ++p) {
      if (!patterns_[p].take(text[i])) continue;
      if (!met || patterns_[p].text.size() > patterns_[*met].text.size()) met = p;
    }
    if (!met) continue;
    is_stopped_ = true;
    held_ += text.substr(0, i + 1);
    if (!include_in_output_) held_.resize(held_.size() - patterns_[*met].text.size());
    return {std::exchange(held_, {}), met};
  }
  held_ += text;
  const size_t num_certain = held_.size() - num_uncertain();
  Outcome outcome{held_.substr(0, num_certain), std::nullopt};
  held_.erase(0, num_certain);
  return outcome;
}

std::string StopStrings::finish() {
  for (Pattern& pattern : patterns_) pattern.length = 0;
  is_stopped_ = false;
  return std::exchange(held_, {});
}

}  // namespace deepinfer
