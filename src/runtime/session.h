// Session: one timeline of tokens on a model, for programs that serve one user.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/status.h"
#include "deepinfer/request.h"
#include "deepinfer/sampling_params.h"
#include "model/transformer.h"
#include "sampling/sequence_sampler.h"

namespace deepinfer {

struct GenerationOptions {
  // A session writes one answer of tokens: n, logprobs, texts (stop, bad_words) and stop_token_ids have to be neutral.
  SamplingParams sampling;
  uint64_t seed = 0;                          // sampling.seq_seed is not looked at
  std::vector<int32_t> stop_tokens;           // end the answer and are not part of it
  const std::atomic<bool>* cancel = nullptr;  // looked at between steps
};

struct GenerationResult {
  std::vector<int32_t> tokens;
  FinishReason reason = FinishReason::kLength;
  int64_t num_prompt_tokens = 0;
  int64_t num_cached_tokens = 0;  // of the prompt, already processed by the turn before
  double prompt_seconds = 0;
  double decode_seconds = 0;  // from the first token to the last
};

class Session {
 public:
  static constexpr int64_t kDefaultChunkTokens = 512;

  // chunk_tokens: how many prompt tokens go through the model at a time; results do not depend on it.
  explicit Session(Model& model, int64_t chunk_tokens = kDefaultChunkTokens);

  // Logits after the last token, once the session holds exactly `tokens` (not empty). What the session processed before
  // is kept if it is a prefix of them. The result is valid until the next call. A cancelled run returns an empty span.
  Result<std::span<const float>> process(std::span<const int32_t> tokens, const std::atomic<bool>* cancel = nullptr);

  // Continues `prompt`; on_token sees every token as it is drawn.
  Result<GenerationResult> generate(std::span<const int32_t> prompt, const GenerationOptions& options,
                                    const std::function<void(int32_t)>& on_token);

 private:
  Status check(std::span<const int32_t> tokens) const;
  Status check(const SamplingParams& sampling) const;

  Model& model_;
  int64_t chunk_tokens_;
  SequenceState state_;
  std::vector<int32_t> processed_;
  std::vector<float> logits_;
  SequenceSampler sampler_;
};

}  // namespace deepinfer
