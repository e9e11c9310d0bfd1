// AddedTokenMatcher: finds the literal spellings of added tokens in text, leftmost first, the longest at each place.
//
// Owns copies of the spellings. Immutable, any thread. What an id means is the caller's business.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {

struct AddedToken {
  std::string text;
  int32_t id;
};

class AddedTokenMatcher {
 public:
  struct Match {
    size_t begin;
    size_t end;
    int32_t id;
  };

  AddedTokenMatcher() = default;
  // Requires: texts not empty and all different.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  bool is_empty() const { return tokens_.empty(); }
  // The first match at or after `begin`.
  std::optional<Match> find(std::string_view text, size_t begin) const;

 private:
  struct Range {
    uint32_t begin = 0;
    uint32_t end = 0;
  };

  const AddedToken* longest_prefix_of(std::string_view text) const;

  std::vector<AddedToken> tokens_;  // sorted by bytes, so that those with a common prefix are neighbours
  std::array<Range, 256> tokens_by_first_byte_{};
};

}  // namespace deepinfer
