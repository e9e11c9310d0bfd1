// SequenceSampler: chooses the tokens of one sequence: what SamplingParams asks for beyond the filters of Sampler.
//
// Order of operations, on a row of logits that it overwrites:
//   1. allowed_token_ids: all other logits become -infinity;
//   2. bad words: the last token of a word whose other tokens end the answer so far becomes -infinity;
//   3. min_tokens: end tokens become -infinity while the answer is shorter;
//   4. logit_bias is added; 5. penalties, of the tokens seen so far; 6. Sampler (temperature, filters, Gumbel-max).
// If 2 and 3 leave no token, the lowest id that step 1 left with a logit above -infinity is chosen all the same (a ban
// gives way, the allowed tokens do not); if step 1 leaves none, the lowest allowed id. Steps 4 and 5 calculate in
// double and round to float once each. What is neutral costs nothing and touches nothing.
//
// Owns the answer's tokens and counts as far as the parameters need them. After reset() nothing allocates. One thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "deepinfer/sampling_params.h"
#include "sampling/sampler.h"

namespace deepinfer {

struct SequenceSetup {
  const SamplingParams* params = nullptr;           // valid for vocab_size; outlives the use of the sampler
  uint64_t key = 0;                                 // choice_key(seed, choice), see philox.h
  int64_t vocab_size = 0;                           // length of a row of logits
  std::span<const int32_t> tokens;                  // so far: the prompt, then any answer that already exists
  int64_t num_prompt_tokens = 0;                    // of `tokens`; the rest counts as answer
  int64_t max_output_tokens = 0;                    // the answer never gets longer (memory is set aside)
  std::span<const std::vector<int32_t>> bad_words;  // token sequences, none empty (text/bad_words.h)
  std::span<const int32_t> end_tokens;              // end of sequence (unless ignored) and stop tokens
};

class SequenceSampler {
 public:
  // Starts another sequence; may allocate. Keeps no reference but to `params`.
  void reset(const SequenceSetup& setup);

  // The answer grows by a token, or loses its last `count`: then everything is as before they were pushed.
  // Requires: an id of the vocabulary; no more tokens than the setup allows; no fewer than were pushed.
  void push(int32_t token);
  void pop(int64_t count);
  int64_t num_output() const { return num_output_; }

  // The token at `position` of the sequence, without pushing it. Overwrites `logits`.
  // Requires: vocab_size logits, no NaN, no +infinity.
  int32_t choose(std::span<float> logits, int64_t position);

 private:
  struct Seen {
    int32_t in_prompt = 0;
    int32_t in_output = 0;
  };

  void reset_counts(const SequenceSetup& setup);
  void count(int32_t token, int32_t Seen::*where);
  void ban_bad_words(std::span<float> logits) const;
  void penalise(std::span<float> logits) const;

  const SamplingParams* params_ = nullptr;
  uint64_t key_ = 0;
  int64_t num_output_ = 0;
  bool keeps_output_ = false;
  bool counts_ = false;  // penalties are on

  std::vector<int32_t> allowed_;  // sorted; empty: all
  std::vector<int32_t> end_tokens_;
  std::vector<int32_t> bad_word_tokens_;  // all words one after another
  std::vector<int32_t> bad_word_ends_;    // where each word ends among them
  std::vector<int32_t> output_;           // if keeps_output_
  std::vector<Seen> seen_;                // by token id, all zero but for touched_
  std::vector<int32_t> touched_;          // tokens with a count, in the order of their first
  Sampler sampler_;
};

}  // namespace deepinfer
