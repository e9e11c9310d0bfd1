#include "text/prompt_builder.h"

#include <algorithm>

#include "text/chat_markers.h"

namespace deepinfer {
namespace {

void rewrite_image_markers(std::string& text) {
  for (size_t at = 0; (at = text.find(kImageMarker, at)) != std::string::npos; at += kRewrittenImageMarker.size()) {
    text.replace(at, kImageMarker.size(), kRewrittenImageMarker);
  }
}

}  // namespace

void PromptBuilder::encode_pending() {
  rewrite_image_markers(pending_);
  tokenizer_->append_ordinary(pending_, prompt_.ids);
  prompt_.text += pending_;
  pending_.clear();
}

void PromptBuilder::add_control(std::string_view name) {
  encode_pending();
  const std::optional<int32_t> id = tokenizer_->find_control_token(name);
  if (id) {
    prompt_.ids.push_back(*id);
  } else if (status_.ok()) {
    status_ = unsupported(
        "the tokenizer has no control token {}, which this conversation needs; use a tokenizer.json whose added_tokens "
        "list it",
        name);
  }
  prompt_.text += name;
}

void PromptBuilder::add_template(std::string_view text) {
  while (!text.empty()) {
    std::string_view marker;
    size_t begin = text.size();
    for (const std::string_view candidate : {kToolMarker, kThinkBegin, kThinkEnd}) {
      const size_t found = text.find(candidate);
      if (found >= begin) continue;
      begin = found;
      marker = candidate;
    }
    pending_ += text.substr(0, begin);
    if (!marker.empty()) add_control(marker);
    text.remove_prefix(begin + marker.size());
  }
}

void PromptBuilder::add_text(std::string_view text) { pending_ += text; }

void PromptBuilder::add_image(const std::string& location) {
  add_control(kImageMarker);
  prompt_.image_locations.push_back(location);
}

Result<EncodedPrompt> PromptBuilder::finish() {
  encode_pending();
  if (!status_.ok()) return std::move(status_);
  return std::move(prompt_);
}

}  // namespace deepinfer
