#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex_splitter.h"

#include <pcre2.h>

#include <cctype>
#include <new>

namespace deepinfer {
namespace {

// Escapes that both engines read alike; punctuation after a backslash is literal in both.
constexpr std::string_view kSharedEscapes = "pPdDrntfxAzG";

// MULTILINE: ^ and $ are line anchors in Oniguruma's Ruby syntax.
constexpr uint32_t kRegexOptions = PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;

bool is_punctuation(char c) { return c > 32 && c < 127 && !std::isalnum(static_cast<unsigned char>(c)); }

Result<std::string> translate(const std::string& pattern) {
  std::string out;
  int class_depth = 0;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '[') {
      if (class_depth > 0 && pattern.compare(i, 2, "[:") != 0) {
        return unsupported("regular expression {}: a character class inside a class is not supported; write it flat",
                           pattern);
      }
      ++class_depth;
    } else if (c == ']' && class_depth > 0) {
      --class_depth;
    } else if (class_depth > 0 && pattern.compare(i, 2, "&&") == 0) {
      return unsupported("regular expression {}: && in a class is not supported; write the class out", pattern);
    }
    if (c != '\\' || i + 1 == pattern.size()) {
      out.push_back(c);
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == 's') {
      out += "\\p{White_Space}";
    } else if (escaped == 'S') {
      out += "\\P{White_Space}";
    } else if (is_punctuation(escaped) || kSharedEscapes.find(escaped) != std::string_view::npos) {
      out += c;
      out += escaped;
    } else {
      return unsupported("regular expression {}: the escape \\{} is not supported; use \\p{{...}} classes", pattern,
                         escaped);
    }
  }
  return out;
}

std::string describe_error(int error) {
  unsigned char text[256];
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

Result<pcre2_code*> compile_code(const std::string& pattern, std::string_view shown, uint32_t options) {
  int error = 0;
  size_t offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | options,
                                   &error, &offset, nullptr);
  if (code == nullptr) {
    return unsupported("regular expression {}: {}; rewrite it in the syntax that PCRE2 knows", shown,
                       describe_error(error));
  }
  // Without machine code (a hardened kernel may forbid it) pcre2_match interprets instead.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return code;
}

// What one thread needs to match. The stack is for patterns with nested repeats; those of tokenizers hardly use it.
class Scratch {
 public:
  Scratch()
      : match_data_(pcre2_match_data_create(1, nullptr)),
        context_(pcre2_match_context_create(nullptr)),
        stack_(pcre2_jit_stack_create(32 << 10, 1 << 20, nullptr)) {
    if (match_data_ == nullptr || context_ == nullptr || stack_ == nullptr) throw std::bad_alloc();
    // The tokenizer file is trusted, and a limit that cut a match short would change tokens.
    pcre2_set_match_limit(context_, UINT32_MAX);
    pcre2_set_depth_limit(context_, UINT32_MAX);
    pcre2_set_heap_limit(context_, UINT32_MAX);
    pcre2_jit_stack_assign(context_, nullptr, stack_);
  }
  ~Scratch() {
    pcre2_match_data_free(match_data_);
    pcre2_match_context_free(context_);
    pcre2_jit_stack_free(stack_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // The next match in [offset, subject.size()): its bounds, or null if there is none.
  const size_t* find(const pcre2_code* code, std::string_view subject, size_t offset) {
    const auto* bytes = reinterpret_cast<PCRE2_SPTR>(subject.data());
    int result = pcre2_jit_match(code, bytes, subject.size(), offset, PCRE2_NO_UTF_CHECK, match_data_, context_);
    if (result == PCRE2_ERROR_JIT_BADOPTION || result == PCRE2_ERROR_JIT_STACKLIMIT) {
      result =
          pcre2_match(code, bytes, subject.size(), offset, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match_data_, context_);
    }
    if (result == PCRE2_ERROR_NOMATCH) return nullptr;
    if (result == PCRE2_ERROR_NOMEMORY) throw std::bad_alloc();
    DI_CHECK(result >= 0, "matching failed: {}", describe_error(result));
    return pcre2_get_ovector_pointer(match_data_);
  }

 private:
  pcre2_match_data* match_data_;
  pcre2_match_context* context_;
  pcre2_jit_stack* stack_;
};

}  // namespace

void RegexSplitter::FreeCode::operator()(void* code) const { pcre2_code_free(static_cast<pcre2_code*>(code)); }

Result<RegexSplitter> RegexSplitter::compile(const std::string& pattern) {
  DI_ASSIGN_OR_RETURN(const std::string translated, translate(pattern));
  DI_ASSIGN_OR_RETURN(pcre2_code* const code, compile_code(translated, pattern, kRegexOptions));
  RegexSplitter splitter(code);
  uint32_t can_match_nothing = 0;
  pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &can_match_nothing);
  if (can_match_nothing) {
    return unsupported("regular expression {}: it can match an empty text; use + instead of *", pattern);
  }
  return splitter;
}

Result<RegexSplitter> RegexSplitter::compile_literal(std::string_view text) {
  DI_ASSIGN_OR_RETURN(pcre2_code* const code, compile_code(std::string(text), text, PCRE2_LITERAL));
  return RegexSplitter(code);
}

void RegexSplitter::split(std::string_view text, size_t begin, size_t end, std::vector<size_t>& ends) const {
  thread_local Scratch scratch;
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const std::string_view subject = text.substr(begin, end - begin);
  size_t position = 0;  // the end of the last piece
  while (const size_t* match = scratch.find(code, subject, position)) {
    if (match[0] > position) ends.push_back(begin + match[0]);
    // \K in a lookahead could move the start past the end; such a pattern must not stop the loop from ending.
    if (match[1] <= position) break;
    position = match[1];
    ends.push_back(begin + position);
  }
  if (position < subject.size()) ends.push_back(begin + subject.size());
}

}  // namespace deepinfer
