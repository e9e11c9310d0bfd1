// Tokenizer: text to token ids and back, from a byte-level BPE tokenizer.json.
//
// Text may be any bytes: ill-formed UTF-8 is first replaced by U+FFFD as in utf8.h, so ids are those the Python package
// gives for the text decoded with errors='replace'. Nothing is added at the front. `encode` recognises the spelling of
// control tokens and is for text we trust; text of users goes through `encode_ordinary`, which never yields one.
// Immutable after loading, any thread. Rendering chats and incremental decoding are left to others.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer {

class Tokenizer {
 public:
  static Result<Tokenizer> load(const std::string& path);
  static Result<Tokenizer> parse(std::string_view json);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  std::vector<int32_t> encode(std::string_view text) const;
  std::vector<int32_t> encode_ordinary(std::string_view text) const;
  void append_ordinary(std::string_view text, std::vector<int32_t>& ids) const;

  // Ids are 0 .. vocab_size() - 1; the functions below require one of these.
  int32_t vocab_size() const;
  // What the id contributes to decoded text; need not be whole characters. A control token gives its literal spelling.
  std::string_view token_bytes(int32_t id) const;
  // As the file spells it: regular tokens in the byte alphabet, control tokens literally.
  std::string token_spelling(int32_t id) const;
  bool is_control(int32_t id) const;

  // The control token of this spelling, else the regular token of these bytes.
  std::optional<int32_t> find_token(std::string_view text) const;
  std::optional<int32_t> find_control_token(std::string_view text) const;

 private:
  struct Parts;

  explicit Tokenizer(std::unique_ptr<const Parts> parts);

  std::unique_ptr<const Parts> parts_;
};

}  // namespace deepinfer
