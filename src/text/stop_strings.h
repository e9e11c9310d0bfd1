// StopStrings: finds the first stop string in a text as it streams in, and says which text is certain until then.
//
// First is the match that ends first; of several that end together, the longest (then the first in the list). What
// could still be the beginning of a stop string is held back, and so is a character cut at its end, so the texts joined
// are the same however the text is cut into pushes, and none of them cuts a character. Stop strings are compared byte
// by byte; ill-formed UTF-8 in them is replaced as the detokenizer replaces it. One per sequence, one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {

class StopStrings {
 public:
  struct Outcome {
    std::string text;            // to deliver now
    std::optional<size_t> stop;  // index of the stop string that was met; nothing comes after it
  };

  // Requires: no empty string. include_in_output: the stop string is delivered too.
  StopStrings(std::span<const std::string> stops, bool include_in_output);

  // Text after a match is dropped.
  Outcome push(std::string_view text);
  // The text has ended: what was held back. The object is as new afterwards.
  std::string finish();

 private:
  struct Pattern {
    explicit Pattern(std::string bytes);
    // Takes the next byte of the text; true if the text now ends with the whole pattern.
    bool take(char byte);

    std::string text;
    std::vector<int32_t> border;  // border[n]: longest proper prefix of the first n + 1 bytes that also ends them
    size_t length = 0;            // the longest prefix of the pattern that ends the text so far
  };

  // How many bytes at the end of the text may not be delivered yet.
  size_t num_uncertain() const;

  std::vector<Pattern> patterns_;
  bool include_in_output_;
  bool is_stopped_ = false;
  std::string held_;  // the end of the text, not delivered
};

}  // namespace deepinfer
