#include "text/engram_token_map.h"

#include <unicode/uchar.h>
#include <unicode/unorm2.h>
#include <unicode/ustring.h>
#include <unicode/utf16.h>

#include <algorithm>
#include <unordered_map>

#include "text/utf8.h"

namespace deepinfer {
namespace {

using Utf16 = std::u16string;

// Private use: stands for a lone space while the ends are trimmed, so that the space survives.
constexpr char16_t kSpaceGuard = 0xE000;

bool is_plain_space(char32_t c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

Status icu_failure(const char* what, UErrorCode error) {
  return Status(ErrorCode::kUnsupported,
                fmt::format("{}: {}; check the installation of ICU and its data", what, u_errorName(error)));
}

Utf16 to_utf16(std::string_view text) {
  Utf16 out;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = decode_valid_utf8(text.data() + i);
    if (c.value >= 0x10000) {
      out.push_back(U16_LEAD(c.value));
      out.push_back(U16_TRAIL(c.value));
    } else {
      out.push_back(static_cast<char16_t>(c.value));
    }
    i += c.num_bytes;
  }
  return out;
}

std::string to_utf8(const Utf16& text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    char32_t c;
    U16_NEXT(text.data(), i, text.size(), c);
    append_utf8(c, out);
  }
  return out;
}

Status apply(const UNormalizer2* form, Utf16& text) {
  Utf16 out(4 * text.size() + 16, u'\0');
  for (;;) {
    UErrorCode error = U_ZERO_ERROR;
    const int32_t size = unorm2_normalize(form, text.data(), static_cast<int32_t>(text.size()), out.data(),
                                          static_cast<int32_t>(out.size()), &error);
    if (error != U_BUFFER_OVERFLOW_ERROR && U_FAILURE(error)) return icu_failure("Unicode normalization", error);
    const bool fits = error != U_BUFFER_OVERFLOW_ERROR;
    out.resize(size);
    if (fits) break;
  }
  text.swap(out);
  return {};
}

// u_strToLower on one code point at a time: full mapping, and no context that a final sigma could depend on.
Status append_lower(char32_t c, Utf16& out) {
  char16_t source[2];
  int32_t source_size = 0;
  U16_APPEND_UNSAFE(source, source_size, c);
  char16_t lower[8];
  UErrorCode error = U_ZERO_ERROR;
  const int32_t size = u_strToLower(lower, std::size(lower), source, source_size, "", &error);
  if (U_FAILURE(error)) return icu_failure("lower case", error);
  out.append(lower, size);
  return {};
}

// Steps from NFD text on: no marks, lower case, one space for each run of plain spaces.
Result<Utf16> strip_and_lower(const Utf16& text) {
  Utf16 out;
  for (size_t i = 0; i < text.size();) {
    char32_t c;
    U16_NEXT(text.data(), i, text.size(), c);
    if (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_M_MASK) continue;
    DI_RETURN_IF_ERROR(append_lower(c, out));
  }
  const auto unique_end = std::unique(out.begin(), out.end(),
                                      [](char16_t a, char16_t b) { return is_plain_space(a) && is_plain_space(b); });
  out.erase(unique_end, out.end());
  std::replace_if(out.begin(), out.end(), is_plain_space, u' ');
  return out;
}

// White space lies in the Basic Multilingual Plane, so code units can be trimmed.
Utf16 trim(const Utf16& text) {
  const auto is_kept = [](char16_t c) { return !u_isUWhiteSpace(c); };
  const auto begin = std::find_if(text.begin(), text.end(), is_kept);
  const auto end = std::find_if(text.rbegin(), std::make_reverse_iterator(begin), is_kept).base();
  return Utf16(begin, end);
}

// What normalize_for_engram does, for ASCII, where normalisation is the identity: nine tokens of ten, without ICU.
std::string normalize_ascii(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  std::string out;
  for (const char c : text) {
    if (!is_plain_space(c)) {
      out.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c);
    } else if (out.empty() || out.back() != ' ') {
      out.push_back(' ');
    }
  }
  if (out == " ") return out;
  const size_t begin = std::find_if_not(out.begin(), out.end(), is_space) - out.begin();
  size_t end = out.size();
  while (end > begin && is_space(out[end - 1])) --end;
  return out.substr(begin, end - begin);
}

Result<std::string> key_of_token(const Tokenizer& tokenizer, int32_t id) {
  const std::string_view bytes = tokenizer.token_bytes(id);
  // A fragment of a character has no text of its own; a literal U+FFFD counts as one.
  if (!is_valid_utf8(bytes) || bytes.find(kReplacementCharacter) != std::string_view::npos) {
    return tokenizer.token_spelling(id);
  }
  DI_ASSIGN_OR_RETURN(std::string normalized, normalize_for_engram(bytes));
  return normalized.empty() ? std::string(bytes) : std::move(normalized);
}

}  // namespace

Result<std::string> normalize_for_engram(std::string_view text) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; })) {
    return normalize_ascii(text);
  }
  UErrorCode error = U_ZERO_ERROR;
  const UNormalizer2* nfkc = unorm2_getNFKCInstance(&error);
  const UNormalizer2* nfd = unorm2_getNFDInstance(&error);
  if (U_FAILURE(error)) return icu_failure("Unicode normalization tables", error);
  Utf16 utf16 = to_utf16(text);
  DI_RETURN_IF_ERROR(apply(nfkc, utf16));
  DI_RETURN_IF_ERROR(apply(nfd, utf16));
  DI_ASSIGN_OR_RETURN(utf16, strip_and_lower(utf16));
  if (utf16 == u" ") utf16 = kSpaceGuard;
  utf16 = trim(utf16);
  std::replace(utf16.begin(), utf16.end(), kSpaceGuard, u' ');
  return to_utf8(utf16);
}

Result<EngramTokenMap> build_engram_token_map(const Tokenizer& tokenizer) {
  EngramTokenMap map;
  map.compressed_ids.reserve(tokenizer.vocab_size());
  std::unordered_map<std::string, uint32_t> id_of_key;
  id_of_key.reserve(tokenizer.vocab_size());
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    DI_ASSIGN_OR_RETURN(std::string key, key_of_token(tokenizer, id));
    const auto [entry, is_new] = id_of_key.emplace(std::move(key), map.num_compressed_ids);
    if (is_new) ++map.num_compressed_ids;
    map.compressed_ids.push_back(entry->second);
  }
  return map;
}

}  // namespace deepinfer
