#include "text/tokenizer_file.h"

#include <simdjson.h>

#include <string>
#include <unordered_map>
#include <utility>

#include "text/byte_alphabet.h"

namespace deepinfer {
namespace {

using simdjson::dom::element;

// The expression that ByteLevel applies of its own when "use_regex" is true.
constexpr const char* kByteLevelPattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

std::string print(const element& value) { return simdjson::minify(value); }

bool is_absent_or_null(const element& object, const char* key) {
  element value;
  return object[key].get(value) != simdjson::SUCCESS || value.is_null();
}

// A member that must have a type; a missing one is an error as well.
template <typename T>
Result<T> member(const element& object, const char* key, std::string_view where) {
  T value;
  if (object[key].get(value) == simdjson::SUCCESS) return value;
  return invalid_input("{}.{} is missing or has the wrong type; this is not a tokenizer.json of the usual form", where,
                       key);
}

// A flag that has a default when the file leaves it out.
Result<bool> flag(const element& object, const char* key, bool absent_value, std::string_view where) {
  if (is_absent_or_null(object, key)) return absent_value;
  return member<bool>(object, key, where);
}

Status require_false(const element& object, const char* key, std::string_view where) {
  DI_ASSIGN_OR_RETURN(const bool value, flag(object, key, false, where));
  if (value) return unsupported("{}.{} is true, which is not supported; export the tokenizer without it", where, key);
  return {};
}

Status check_normalizer(const element& root) {
  if (is_absent_or_null(root, "normalizer")) return {};
  const element normalizer = root["normalizer"].value_unsafe();
  simdjson::dom::array parts;
  if (normalizer["normalizers"].get(parts) == simdjson::SUCCESS && parts.size() == 0) return {};
  return unsupported("normalizer {} is not supported; byte-level BPE works on the text as it is, so remove it",
                     print(normalizer));
}

Result<SplitPattern> parse_split(const element& stage, std::string_view where) {
  DI_ASSIGN_OR_RETURN(const std::string_view behavior, member<std::string_view>(stage, "behavior", where));
  if (behavior != "Isolated") {
    return unsupported("{}.behavior is \"{}\"; only \"Isolated\" is supported", where, behavior);
  }
  DI_RETURN_IF_ERROR(require_false(stage, "invert", where));
  std::string_view text;
  SplitPattern pattern;
  if (stage["pattern"]["Regex"].get(text) != simdjson::SUCCESS) {
    pattern.is_regex = false;
    if (stage["pattern"]["String"].get(text) != simdjson::SUCCESS || text.empty()) {
      return invalid_input("{}.pattern has neither \"Regex\" nor a non-empty \"String\"", where);
    }
  }
  pattern.text = text;
  return pattern;
}

// Appends the splits of one stage; true if it was the ByteLevel one, which has to come last.
Result<bool> parse_stage(const element& stage, const std::string& where, std::vector<SplitPattern>& splits) {
  DI_ASSIGN_OR_RETURN(const std::string_view type, member<std::string_view>(stage, "type", where));
  if (type == "Split") {
    DI_ASSIGN_OR_RETURN(SplitPattern pattern, parse_split(stage, where));
    splits.push_back(std::move(pattern));
    return false;
  }
  if (type != "ByteLevel") {
    return unsupported("{}.type is \"{}\"; only \"Split\" and \"ByteLevel\" are supported", where, type);
  }
  DI_ASSIGN_OR_RETURN(const bool adds_space, flag(stage, "add_prefix_space", true, where));
  if (adds_space) return unsupported("{}.add_prefix_space is true, which is not supported; set it to false", where);
  DI_ASSIGN_OR_RETURN(const bool uses_regex, flag(stage, "use_regex", true, where));
  if (uses_regex) splits.push_back({true, kByteLevelPattern});
  return true;
}

Result<std::vector<SplitPattern>> parse_pretokenizer(const element& root) {
  DI_ASSIGN_OR_RETURN(const element pretokenizer, member<element>(root, "pre_tokenizer", "the file"));
  std::vector<SplitPattern> splits;
  bool has_byte_level = false;
  simdjson::dom::array stages;
  if (pretokenizer["pretokenizers"].get(stages) != simdjson::SUCCESS) {
    DI_ASSIGN_OR_RETURN(has_byte_level, parse_stage(pretokenizer, "pre_tokenizer", splits));
  } else {
    size_t i = 0;
    for (const element stage : stages) {
      const std::string where = fmt::format("pre_tokenizer.pretokenizers[{}]", i++);
      if (has_byte_level) return unsupported("{} follows the ByteLevel stage, which has to be the last", where);
      DI_ASSIGN_OR_RETURN(has_byte_level, parse_stage(stage, where, splits));
    }
  }
  if (!has_byte_level) return unsupported("pre_tokenizer has no ByteLevel stage; only byte-level BPE is supported");
  return splits;
}

Status check_model(const element& model) {
  DI_ASSIGN_OR_RETURN(const std::string_view type, member<std::string_view>(model, "type", "model"));
  if (type != "BPE") return unsupported("model.type is \"{}\"; only byte-level \"BPE\" is supported", type);
  // unk_token is not listed: with a token for every byte there is nothing unknown.
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    std::string_view text;
    if (is_absent_or_null(model, key)) continue;
    if (model[key].get(text) == simdjson::SUCCESS && text.empty()) continue;
    return unsupported("model.{} is {}, which is not supported; export the tokenizer without it", key,
                       print(model[key].value_unsafe()));
  }
  DI_RETURN_IF_ERROR(require_false(model, "byte_fallback", "model"));
  return require_false(model, "ignore_merges", "model");
}

Result<std::vector<TokenEntry>> parse_vocabulary(const element& model) {
  DI_ASSIGN_OR_RETURN(const simdjson::dom::object vocabulary, member<simdjson::dom::object>(model, "vocab", "model"));
  std::vector<TokenEntry> entries;
  entries.reserve(vocabulary.size());
  for (const auto [spelling, value] : vocabulary) {
    int64_t id = 0;
    if (value.get(id) != simdjson::SUCCESS || id < 0 || id > INT32_MAX) {
      return invalid_input("model.vocab: the id of \"{}\" is {}, not a number from 0 to 2^31-1", spelling,
                           print(value));
    }
    TokenEntry entry{static_cast<int32_t>(id), TokenKind::kBytes, {}};
    if (!append_spelled_bytes(spelling, entry.bytes)) {
      entry.kind = TokenKind::kLiteral;
      entry.bytes = spelling;
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

Result<AddedToken> parse_added_token(const element& value, const std::string& where) {
  DI_ASSIGN_OR_RETURN(const std::string_view text, member<std::string_view>(value, "content", where));
  DI_ASSIGN_OR_RETURN(const int64_t id, member<int64_t>(value, "id", where));
  if (text.empty()) return invalid_input("{}.content is empty; remove this added token", where);
  if (id < 0 || id > INT32_MAX) return invalid_input("{}.id is {}, not a number from 0 to 2^31-1", where, id);
  for (const char* key : {"single_word", "lstrip", "rstrip"}) DI_RETURN_IF_ERROR(require_false(value, key, where));
  return AddedToken{std::string(text), static_cast<int32_t>(id)};
}

Status parse_added_tokens(const element& root, TokenizerFile& file) {
  if (is_absent_or_null(root, "added_tokens")) return {};
  DI_ASSIGN_OR_RETURN(const simdjson::dom::array tokens,
                      member<simdjson::dom::array>(root, "added_tokens", "the file"));
  size_t i = 0;
  for (const element value : tokens) {
    const std::string where = fmt::format("added_tokens[{}]", i++);
    DI_ASSIGN_OR_RETURN(AddedToken token, parse_added_token(value, where));
    DI_ASSIGN_OR_RETURN(const bool is_normalized, flag(value, "normalized", false, where));
    (is_normalized ? file.normalized_added_tokens : file.added_tokens).push_back(std::move(token));
  }
  return {};
}

// Added tokens may repeat vocabulary entries (same id, same spelling) and then turn them into control tokens.
Status add_control_tokens(const std::vector<AddedToken>& tokens, std::vector<TokenEntry>& entries) {
  std::unordered_map<int32_t, size_t> entry_of_id;
  for (size_t i = 0; i < entries.size(); ++i) entry_of_id.emplace(entries[i].id, i);
  for (const AddedToken& token : tokens) {
    const auto found = entry_of_id.find(token.id);
    if (found == entry_of_id.end()) {
      entry_of_id.emplace(token.id, entries.size());
      entries.push_back({token.id, TokenKind::kControl, token.text});
      continue;
    }
    TokenEntry& entry = entries[found->second];
    if (entry.kind == TokenKind::kControl) {
      return invalid_input("added token \"{}\" has id {}, which is listed twice; keep one", token.text, token.id);
    }
    const std::string spelling = entry.kind == TokenKind::kBytes ? spell_bytes(entry.bytes) : entry.bytes;
    if (spelling != token.text) {
      return invalid_input("added token \"{}\" has id {}, which the vocabulary gives to \"{}\"", token.text, token.id,
                           spelling);
    }
    entry.kind = TokenKind::kControl;
    entry.bytes = token.text;
  }
  return {};
}

class MergeReader {
 public:
  explicit MergeReader(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}

  Result<Merge> read(const element& value, size_t rank) {
    std::string_view left, right;
    if (!split(value, left, right)) {
      return invalid_input("model.merges[{}] is {}, not \"a b\" or [\"a\", \"b\"]", rank, print(value));
    }
    Merge merge{};
    left_.clear();
    right_.clear();
    const bool are_spelled = append_spelled_bytes(left, left_) && append_spelled_bytes(right, right_);
    if (are_spelled && find(left_, merge.left) && find(right_, merge.right) && find(left_ + right_, merge.result)) {
      return merge;
    }
    return invalid_input("model.merges[{}] joins \"{}\" and \"{}\", but one of the three tokens is not in model.vocab",
                         rank, left, right);
  }

 private:
  static bool split(const element& value, std::string_view& left, std::string_view& right) {
    std::string_view both;
    if (value.get(both) == simdjson::SUCCESS) {
      const size_t space = both.find(' ');
      if (space == std::string_view::npos) return false;
      left = both.substr(0, space);
      right = both.substr(space + 1);
    } else {
      simdjson::dom::array pair;
      if (value.get(pair) != simdjson::SUCCESS || pair.size() != 2) return false;
      if (pair.at(0).get(left) != simdjson::SUCCESS || pair.at(1).get(right) != simdjson::SUCCESS) return false;
    }
    return !left.empty() && !right.empty();
  }

  bool find(const std::string& bytes, int32_t& id) const {
    const std::optional<int32_t> found = vocabulary_.find_regular(bytes);
    if (found) id = *found;
    return found.has_value();
  }

  const Vocabulary& vocabulary_;
  std::string left_;
  std::string right_;
};

Result<TokenizerFile> read_root(const element& root) {
  DI_RETURN_IF_ERROR(check_normalizer(root));
  DI_ASSIGN_OR_RETURN(const element model, member<element>(root, "model", "the file"));
  DI_RETURN_IF_ERROR(check_model(model));
  TokenizerFile file;
  DI_ASSIGN_OR_RETURN(file.split_stages, parse_pretokenizer(root));
  DI_RETURN_IF_ERROR(parse_added_tokens(root, file));
  DI_ASSIGN_OR_RETURN(std::vector<TokenEntry> entries, parse_vocabulary(model));
  DI_RETURN_IF_ERROR(add_control_tokens(file.added_tokens, entries));
  DI_RETURN_IF_ERROR(add_control_tokens(file.normalized_added_tokens, entries));
  DI_ASSIGN_OR_RETURN(file.vocabulary, Vocabulary::create(std::move(entries)));
  DI_ASSIGN_OR_RETURN(const simdjson::dom::array merges, member<simdjson::dom::array>(model, "merges", "model"));
  MergeReader reader(file.vocabulary);
  for (const element value : merges) {
    DI_ASSIGN_OR_RETURN(const Merge merge, reader.read(value, file.merges.size()));
    file.merges.push_back(merge);
  }
  return file;
}

}  // namespace

Result<TokenizerFile> parse_tokenizer_file(std::string_view json) {
  simdjson::dom::parser parser;
  element root;
  if (const simdjson::error_code error = parser.parse(json.data(), json.size()).get(root)) {
    return invalid_input("not valid JSON: {}", simdjson::error_message(error));
  }
  return read_root(root);
}

}  // namespace deepinfer
