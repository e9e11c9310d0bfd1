// PromptBuilder: joins control tokens and text into a prompt, as ids and as text.
//
// Text between two control tokens is encoded as one string, as the tokenizer would see it in the whole prompt, with the
// search for control tokens switched off: nothing a user wrote can become one. Names of control tokens in our own
// template text are looked up in the tokenizer; a missing one makes `finish` fail. One prompt per object, one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/tokenizer.h"

namespace deepinfer {

struct EncodedPrompt {
  std::vector<int32_t> ids;
  std::string text;
  std::vector<std::string> image_locations;  // one for each image token, in order
};

class PromptBuilder {
 public:
  explicit PromptBuilder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  void add_control(std::string_view name);
  // Text of ours, in which the markers of reasoning and tool calls are control tokens.
  void add_template(std::string_view text);
  // Text of others. A literal image placeholder in it is rewritten with ASCII bars.
  void add_text(std::string_view text);
  void add_image(const std::string& location);

  Result<EncodedPrompt> finish();

 private:
  void encode_pending();

  const Tokenizer* tokenizer_;
  EncodedPrompt prompt_;
  std::string pending_;  // text since the last control token
  Status status_;
};

}  // namespace deepinfer
