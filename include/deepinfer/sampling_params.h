// SamplingParams: how the tokens of one request are chosen and when it ends. Field names are those of the completion
// APIs that users know. Checked when a request is submitted: a message names the field, its value and the range.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace deepinfer {

struct SamplingParams {
  // Number of independent answers. Choice i uses the seed's own stream i, so choice 0 equals the answer for n = 1.
  int32_t n = 1;  // [1, 128]

  // Choosing. Order: allowed_token_ids, bad_words, min_tokens, logit_bias, repetition_penalty, presence and frequency
  // penalty, temperature, min_p, top_k, top_p, then Gumbel-max among what is left; ties go to the lowest id.
  double temperature = 1.0;         // >= 0; below 1e-5 the best token is taken
  double top_p = 1.0;               // (0, 1]: the smallest set of best tokens with at least this probability
  int64_t top_k = 0;                // the k best; 0 or -1: all
  double min_p = 0.0;               // [0, 1]: drops tokens below this share of the best one's probability
  double presence_penalty = 0.0;    // [-2, 2]: subtracted once from every token of the answer so far
  double frequency_penalty = 0.0;   // [-2, 2]: subtracted for every time a token stands in the answer so far
  double repetition_penalty = 1.0;  // (0, 2]: positive logits of seen tokens (prompt too) divided, negative multiplied
  std::vector<std::pair<int32_t, double>> logit_bias;  // token id, [-100, 100]
  std::vector<int32_t> allowed_token_ids;              // empty: all
  std::vector<std::string> bad_words;                  // the tokens that spell one, or one after a space, are banned

  // The random number of a token is a function of (seed, choice, position, token id) alone.
  std::optional<uint64_t> seq_seed;  // default: 64 random bits, reported in the output

  // Ending. Tests at every token, in this order: end of sequence or stop token, stop string, length.
  int64_t max_tokens = 16;  // >= 1
  int64_t min_tokens = 0;   // no end of sequence or stop token before; <= max_tokens
  bool ignore_eos = false;  // the model's end-of-sequence tokens are ordinary tokens
  std::vector<int32_t> stop_token_ids;
  std::vector<std::string> stop;            // not empty strings
  bool include_stop_str_in_output = false;  // the stop string stays at the end of the text

  // Reporting. Log-probabilities are natural, of the model itself: before penalties, temperature and filters.
  std::optional<int32_t> logprobs;         // [0, 20]: of each chosen token, and of so many best tokens
  std::optional<int32_t> prompt_logprobs;  // [0, 20]: the same of each prompt token but the first
  bool skip_special_tokens = true;         // in the text
  bool detokenize = true;                  // false: token ids only; stop strings are then refused
};

}  // namespace deepinfer
