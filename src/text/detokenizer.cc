#include "text/detokenizer.h"

#include "text/utf8.h"

namespace deepinfer {

std::string Detokenizer::push(int32_t id) {
  if (controls_ == Controls::kHide && tokenizer_->is_control(id)) return {};
  tail_ += tokenizer_->token_bytes(id);
  std::string text;
  std::string_view rest = tail_;
  while (!rest.empty()) {
    const Utf8Unit unit = first_utf8_unit(rest);
    if (unit.kind == Utf8Kind::kIncomplete) break;
    text += unit.kind == Utf8Kind::kValid ? rest.substr(0, unit.num_bytes) : kReplacementCharacter;
    rest.remove_prefix(unit.num_bytes);
  }
  tail_.erase(0, tail_.size() - rest.size());
  return text;
}

std::string Detokenizer::finish() {
  std::string text = replace_invalid_utf8(tail_);
  tail_.clear();
  return text;
}

}  // namespace deepinfer
