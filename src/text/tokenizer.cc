#include "text/tokenizer.h"

#include <fstream>
#include <sstream>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/byte_alphabet.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_file.h"
#include "text/utf8.h"
#include "text/vocabulary.h"

namespace deepinfer {

struct Tokenizer::Parts {
  Vocabulary vocabulary;
  Bpe bpe;
  Pretokenizer pretokenizer;
  AddedTokenMatcher matchers[2];  // in the order in which they cut the text

  void encode_between_controls(std::string_view text, int matcher, std::vector<int32_t>& ids) const;
  void encode_pieces(std::string_view text, std::vector<int32_t>& ids) const;
};

void Tokenizer::Parts::encode_pieces(std::string_view text, std::vector<int32_t>& ids) const {
  BpeScratch scratch;
  std::vector<size_t> ends;
  const char* const text_end = text.data() + text.size();
  size_t begin = 0;
  while (begin < text.size()) {
    pretokenizer.next_pieces(text, begin, ends);
    for (const size_t end : ends) {
      bpe.encode(text.substr(begin, end - begin), text_end, scratch, ids);
      begin = end;
    }
  }
}

void Tokenizer::Parts::encode_between_controls(std::string_view text, int matcher, std::vector<int32_t>& ids) const {
  if (matcher == 2) return encode_pieces(text, ids);
  size_t begin = 0;
  while (const auto match = matchers[matcher].find(text, begin)) {
    encode_between_controls(text.substr(begin, match->begin - begin), matcher + 1, ids);
    ids.push_back(match->id);
    begin = match->end;
  }
  encode_between_controls(text.substr(begin), matcher + 1, ids);
}

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::parse(std::string_view json) {
  DI_ASSIGN_OR_RETURN(TokenizerFile file, parse_tokenizer_file(json));
  DI_ASSIGN_OR_RETURN(Bpe bpe, Bpe::create(file.vocabulary, file.merges));
  DI_ASSIGN_OR_RETURN(Pretokenizer pretokenizer, Pretokenizer::create(file.split_stages));
  return Tokenizer(std::make_unique<const Parts>(Parts{
      std::move(file.vocabulary),
      std::move(bpe),
      std::move(pretokenizer),
      {AddedTokenMatcher(std::move(file.added_tokens)), AddedTokenMatcher(std::move(file.normalized_added_tokens))}}));
}

Result<Tokenizer> Tokenizer::load(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return not_found("{}: cannot be opened; give the path of a tokenizer.json", path);
  std::ostringstream content;
  content << stream.rdbuf();
  if (stream.bad()) return io_error("{}: reading failed", path);
  Result<Tokenizer> tokenizer = parse(content.view());
  if (!tokenizer.ok()) return tokenizer.status().with_context(path);
  return tokenizer;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  if (is_valid_utf8(text)) {
    parts_->encode_between_controls(text, 0, ids);
  } else {
    parts_->encode_between_controls(replace_invalid_utf8(text), 0, ids);
  }
  return ids;
}

std::vector<int32_t> Tokenizer::encode_ordinary(std::string_view text) const {
  std::vector<int32_t> ids;
  append_ordinary(text, ids);
  return ids;
}

void Tokenizer::append_ordinary(std::string_view text, std::vector<int32_t>& ids) const {
  if (is_valid_utf8(text)) {
    parts_->encode_pieces(text, ids);
  } else {
    parts_->encode_pieces(replace_invalid_utf8(text), ids);
  }
}

int32_t Tokenizer::vocab_size() const { return parts_->vocabulary.size(); }

std::string_view Tokenizer::token_bytes(int32_t id) const { return parts_->vocabulary.bytes(id); }

std::string Tokenizer::token_spelling(int32_t id) const {
  const std::string_view bytes = token_bytes(id);
  return parts_->vocabulary.kind(id) == TokenKind::kBytes ? spell_bytes(bytes) : std::string(bytes);
}

bool Tokenizer::is_control(int32_t id) const { return parts_->vocabulary.kind(id) == TokenKind::kControl; }

std::optional<int32_t> Tokenizer::find_control_token(std::string_view text) const {
  return parts_->vocabulary.find_control(text);
}

std::optional<int32_t> Tokenizer::find_token(std::string_view text) const {
  const std::optional<int32_t> control = find_control_token(text);
  return control ? control : parts_->vocabulary.find_regular(text);
}

}  // namespace deepinfer
