// Bounded replay: how much of a prompt the decoder's layers see (model/step.h, SequenceStep::decoder_begin).
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/status.h"

namespace deepinfer {

enum class ReplayMode : uint8_t { kOff, kMask, kCompact };

inline const char* name_of(ReplayMode mode) {
  return mode == ReplayMode::kOff ? "off" : mode == ReplayMode::kMask ? "mask" : "compact";
}

struct ReplayOptions {
  ReplayMode mode = ReplayMode::kOff;
  int64_t keep_tokens = 0;  // of the prompt's end
};

// keep_tokens must hold the decoder's windows and what may be taken back later; with overlapped scheduling two steps
// can be in flight, each of which may be.
inline Status check_replay(const ReplayOptions& options, int64_t window, int64_t max_backtracking, bool overlapped) {
  const int64_t least = window + max_backtracking * (overlapped ? 2 : 1);
  if (options.mode != ReplayMode::kOff && options.keep_tokens < least) {
    return invalid_input(
        "yoco_prefill_keep_tokens {}: keep at least {} (the window of {} and {} positions that may be taken back), 0 "
        "to "
        "process every prompt fully, or \"exact\"",
        options.keep_tokens, least, window, least - window);
  }
  return Status();
}

// Position from which the decoder sees a prompt; 0: all of it. Log-probabilities of the prompt need all of it.
inline int64_t decoder_begin(const ReplayOptions& options, int64_t num_prompt_tokens, bool wants_prompt_logprobs) {
  if (options.mode == ReplayMode::kOff || wants_prompt_logprobs) return 0;
  return std::max<int64_t>(0, num_prompt_tokens - options.keep_tokens);
}

// How many tokens a sequence may adopt: a unit lacks the decoder's rows from before its own replay, so nothing that
// this sequence's decoder reads may come from it.
inline int64_t longest_adoptable(const ReplayOptions& options, int64_t begin, int64_t num_tokens) {
  return options.mode == ReplayMode::kOff ? num_tokens : std::min(begin, num_tokens);
}

}  // namespace deepinfer
