// Vocabulary: what every token id stands for, as bytes.
//
// Owns all token bytes; views it returns live as long as it does (moving it keeps them valid). Immutable, any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer {

enum class TokenKind : uint8_t {
  kBytes,    // a regular token, spelled in the byte alphabet in its file
  kLiteral,  // a vocabulary entry spelled outside the byte alphabet; no merge can produce it
  kControl,  // an added token
};

struct TokenEntry {
  int32_t id;
  TokenKind kind;
  std::string bytes;  // for kLiteral and kControl their UTF-8 spelling
};

class Vocabulary {
 public:
  // The ids have to be 0 .. n-1, each once, and the bytes within one kind different; anything else is refused.
  static Result<Vocabulary> create(std::vector<TokenEntry> entries);

  int32_t size() const { return static_cast<int32_t>(kinds_.size()); }
  // Requires: 0 <= id < size().
  std::string_view bytes(int32_t id) const { return {bytes_.get() + begins_[id], begins_[id + 1] - begins_[id]}; }
  TokenKind kind(int32_t id) const { return kinds_[id]; }

  std::optional<int32_t> find_regular(std::string_view bytes) const { return find(regular_, bytes); }
  std::optional<int32_t> find_control(std::string_view text) const { return find(control_, text); }

 private:
  // Open addressing; the hash kept beside the id spares most look-ups a visit to the bytes of another token.
  struct Slot {
    uint32_t hash = 0;
    int32_t id = kNoId;
  };
  using Index = std::vector<Slot>;
  static constexpr int32_t kNoId = -1;

  // Where the token is or would be put.
  size_t place_of(const Index& index, std::string_view bytes, uint32_t hash) const;
  std::optional<int32_t> find(const Index& index, std::string_view bytes) const;
  Status insert(Index& index, int32_t id);

  std::unique_ptr<char[]> bytes_;
  std::vector<uint32_t> begins_;  // [size() + 1]
  std::vector<TokenKind> kinds_;
  Index regular_ = Index(1);  // kBytes
  Index control_ = Index(1);  // kControl
};

}  // namespace deepinfer
