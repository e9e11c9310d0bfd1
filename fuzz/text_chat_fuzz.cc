// Any bytes as a chat request: either an error, or a prompt whose ids spell its text and whose control tokens are those
// that the format put there.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "text/chat_encoding.h"
#include "text/chat_markers.h"
#include "text/small_tokenizer.h"
#include "text/utf8.h"

using namespace deepinfer;  // NOLINT: a program of its own

namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer small =
      small_tokenizer({kBeginOfSentence, kEndOfSentence, kSystemMarker, kUserMarker, kAssistantMarker,
                       kLatestReminderMarker, kThinkBegin, kThinkEnd, kToolMarker, kImageMarker, "<｜action｜>",
                       "<｜query｜>", "<｜authority｜>", "<｜domain｜>", "<｜title｜>", "<｜read_url｜>"});
  return small;
}

// Every tool block brings these markers; texts bring none.
size_t expected_tool_markers(const ChatRequest& request) {
  size_t num = 0;
  for (const ChatMessage& message : request.messages) {
    if (message.role == Role::kSystem && !message.tools.empty()) num += 9;
    if (message.tool_calls.empty()) continue;
    num += 2;
    for (const ToolCall& call : message.tool_calls) num += 2 + 2 * call.parameters.size();
  }
  return num;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Result<ChatRequest> request = parse_chat_request({reinterpret_cast<const char*>(data), size});
  if (!request.ok()) {
    DI_CHECK(is_valid_utf8(request.status().message()), "an error that is not text");
    return 0;
  }
  const Result<EncodedPrompt> prompt = encode_chat(tokenizer(), *request);
  DI_CHECK(prompt.ok(), "{}", prompt.status().message());
  std::string text;
  for (const int32_t id : prompt->ids) text += tokenizer().token_bytes(id);
  DI_CHECK(text == prompt->text, "ids and text differ");
  const auto count = [&prompt](std::string_view marker) {
    return static_cast<size_t>(
        std::count(prompt->ids.begin(), prompt->ids.end(), *tokenizer().find_control_token(marker)));
  };
  DI_CHECK(count(kBeginOfSentence) == 1, "not one begin of sentence");
  DI_CHECK(count(kImageMarker) == prompt->image_locations.size(), "image tokens without image");
  DI_CHECK(count(kToolMarker) == expected_tool_markers(*request), "{} tool markers", count(kToolMarker));
  DI_CHECK(count(kUserMarker) <= request->messages.size(), "more user turns than messages");
  return 0;
}
