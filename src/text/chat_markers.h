// The control tokens of the chat format by their spelling. The bars are U+FF5C and the blanks U+2581, not ASCII.
#pragma once

#include <string_view>

namespace deepinfer {

inline constexpr std::string_view kBeginOfSentence = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEndOfSentence = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kSystemMarker = "<｜System｜>";
inline constexpr std::string_view kUserMarker = "<｜User｜>";
inline constexpr std::string_view kAssistantMarker = "<｜Assistant｜>";
inline constexpr std::string_view kLatestReminderMarker = "<｜latest_reminder｜>";
inline constexpr std::string_view kThinkBegin = "<think>";
inline constexpr std::string_view kThinkEnd = "</think>";
inline constexpr std::string_view kToolMarker = "｜DSML｜";
inline constexpr std::string_view kImageMarker = "<｜deepseek_image｜>";
inline constexpr std::string_view kRewrittenImageMarker = "<|deepseek_image|>";

}  // namespace deepinfer
