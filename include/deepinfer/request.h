// What goes into the engine and what comes out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "deepinfer/logprobs.h"
#include "deepinfer/sampling_params.h"

namespace deepinfer {

using RequestId = uint64_t;  // 1, 2, 3, …

struct Request {
  // One of the two. Text becomes tokens as it is: chat markers in it are ordinary text.
  std::string prompt;
  std::vector<int32_t> prompt_tokens;

  SamplingParams sampling;
  int32_t priority = 0;        // lower goes first; a higher number may be interrupted for a lower one
  std::string cache_salt;      // prefixes are shared only among requests of the same salt (a tenant)
  double timeout_seconds = 0;  // from submission; 0: none. An overdue request is aborted.
};

enum class FinishReason : uint8_t {
  kStop,     // end of sequence, a stop token or a stop string
  kLength,   // max_tokens, or the context is full
  kAborted,  // cancelled, overdue, or the engine shut down
  kFailed,   // RequestOutput::error says why
};

// "stop", "length", "abort", "error".
inline const char* name_of(FinishReason reason) {
  constexpr const char* kNames[] = {"stop", "length", "abort", "error"};
  return kNames[static_cast<int>(reason)];
}

// One answer. In an update: what was added since the one before.
struct Completion {
  int32_t index = 0;                    // of n
  std::string text;                     // without the stop string (unless asked for) and end tokens
  std::vector<int32_t> tokens;          // end token included
  std::vector<TokenLogprobs> logprobs;  // one a token (but not of the end token), if asked for
  double cumulative_logprob = 0;        // of those, if asked for
  std::optional<FinishReason> finish_reason;
  std::string stop_reason;  // the stop string, or the id of the stop token; empty for end of sequence
};

struct RequestMetrics {
  double queue_seconds = 0;        // until its first tokens ran
  double first_token_seconds = 0;  // from submission
  double total_seconds = 0;
  int32_t num_preemptions = 0;
};

struct RequestOutput {
  RequestId id = 0;
  bool finished = false;
  std::string error;                           // for kFailed
  std::vector<int32_t> prompt_tokens;          // in the final output
  std::vector<TokenLogprobs> prompt_logprobs;  // of prompt tokens 1, 2, …, if asked for
  std::vector<Completion> completions;         // in an update: those that have news
  int64_t num_cached_tokens = 0;               // of the prompt, not computed again
  uint64_t seq_seed = 0;                       // the seed that was used
  // Bounded replay: the position from which the decoder's layers saw the prompt; 0: all of it.
  int64_t replay_begin = 0;
  // Numerics, kernels, cache format, replay and model: with the same fingerprint the same request gives the same bytes.
  std::string fingerprint;
  RequestMetrics metrics;
};

}  // namespace deepinfer
