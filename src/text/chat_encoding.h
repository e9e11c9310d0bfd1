// The chat format of DeepSeek-V4.1: a conversation to the prompt the model was trained on.
//
// Control tokens are looked up by name in the tokenizer; one that is missing is an error only if the conversation needs
// it. Texts of the conversation never become control tokens, whatever they spell. Pure function, any thread.
#pragma once

#include "base/status.h"
#include "text/chat_request.h"
#include "text/prompt_builder.h"
#include "text/tokenizer.h"

namespace deepinfer {

// Requires: reasoning_effort from 1 to 100, as parse_chat_request gives it.
Result<EncodedPrompt> encode_chat(const Tokenizer& tokenizer, const ChatRequest& request);

}  // namespace deepinfer
