#include "sampling/sequence_sampler.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace deepinfer {
namespace {

// Everything but `allowed` (sorted, not empty) becomes -infinity.
void keep_only(std::span<const int32_t> allowed, std::span<float> logits) {
  auto next = logits.begin();
  for (const int32_t id : allowed) {
    const auto here = logits.begin() + id;
    if (next < here) std::fill(next, here, -INFINITY);
    next = here + 1;
  }
  std::fill(next, logits.end(), -INFINITY);
}

}  // namespace

void SequenceSampler::reset(const SequenceSetup& setup) {
  DI_CHECK(setup.num_prompt_tokens <= static_cast<int64_t>(setup.tokens.size()), "{} prompt tokens of {}",
           setup.num_prompt_tokens, setup.tokens.size());
  params_ = setup.params;
  key_ = setup.key;
  allowed_ = params_->allowed_token_ids;
  std::sort(allowed_.begin(), allowed_.end());
  allowed_.erase(std::unique(allowed_.begin(), allowed_.end()), allowed_.end());
  end_tokens_.assign(setup.end_tokens.begin(), setup.end_tokens.end());
  bad_word_tokens_.clear();
  bad_word_ends_.clear();
  for (const std::vector<int32_t>& word : setup.bad_words) {
    DI_CHECK(!word.empty(), "a bad word without tokens");
    bad_word_tokens_.insert(bad_word_tokens_.end(), word.begin(), word.end());
    bad_word_ends_.push_back(static_cast<int32_t>(bad_word_tokens_.size()));
  }
  sampler_.reserve(setup.vocab_size);
  reset_counts(setup);
  num_output_ = 0;
  for (const int32_t token : setup.tokens.subspan(setup.num_prompt_tokens)) push(token);
}

void SequenceSampler::reset_counts(const SequenceSetup& setup) {
  for (const int32_t token : touched_) seen_[token] = {};
  touched_.clear();
  output_.clear();
  const bool repeats = params_->repetition_penalty != 1;
  counts_ = repeats || params_->presence_penalty != 0 || params_->frequency_penalty != 0;
  keeps_output_ = counts_ || !bad_word_ends_.empty();
  if (keeps_output_) output_.reserve(setup.max_output_tokens);
  if (!counts_) return;
  const int64_t most = (repeats ? setup.num_prompt_tokens : 0) + setup.max_output_tokens;
  touched_.reserve(std::min(setup.vocab_size, most));
  seen_.resize(setup.vocab_size);
  if (!repeats) return;
  for (const int32_t token : setup.tokens.first(setup.num_prompt_tokens)) count(token, &Seen::in_prompt);
}

void SequenceSampler::count(int32_t token, int32_t Seen::*where) {
  Seen& seen = seen_[token];
  if (seen.in_prompt + seen.in_output == 0) touched_.push_back(token);
  ++(seen.*where);
}

void SequenceSampler::push(int32_t token) {
  ++num_output_;
  if (!keeps_output_) return;
  DI_CHECK(output_.size() < output_.capacity(), "an answer of more than {} tokens", output_.capacity());
  output_.push_back(token);
  if (counts_) count(token, &Seen::in_output);
}

void SequenceSampler::pop(int64_t count) {
  DI_CHECK(count >= 0 && count <= num_output_, "{} of {} tokens taken back", count, num_output_);
  num_output_ -= count;
  if (!keeps_output_) return;
  for (; count > 0; --count) {
    const int32_t token = output_.back();
    output_.pop_back();
    if (!counts_) continue;
    Seen& seen = seen_[token];
    // What was counted last is taken back first, so a token whose count ends is the last of those touched.
    if (--seen.in_output + seen.in_prompt == 0) touched_.pop_back();
  }
}

void SequenceSampler::ban_bad_words(std::span<float> logits) const {
  int32_t begin = 0;
  for (const int32_t end : bad_word_ends_) {
    const std::span<const int32_t> word = std::span(bad_word_tokens_).subspan(begin, end - begin);
    begin = end;
    const size_t before = word.size() - 1;
    if (before > output_.size()) continue;
    if (std::equal(output_.end() - before, output_.end(), word.begin())) logits[word.back()] = -INFINITY;
  }
}

void SequenceSampler::penalise(std::span<float> logits) const {
  for (const int32_t token : touched_) {
    const Seen& seen = seen_[token];
    double logit = logits[token];
    logit = logit > 0 ? logit / params_->repetition_penalty : logit * params_->repetition_penalty;
    logit -= params_->frequency_penalty * seen.in_output;
    if (seen.in_output > 0) logit -= params_->presence_penalty;
    logits[token] = static_cast<float>(logit);
  }
}

int32_t SequenceSampler::choose(std::span<float> logits, int64_t position) {
  const SamplingParams& params = *params_;
  int32_t last_resort = 0;
  if (!allowed_.empty()) {
    keep_only(allowed_, logits);
    last_resort = allowed_.front();
  }
  const bool may_not_end = num_output_ < params.min_tokens && !end_tokens_.empty();
  if (may_not_end || !bad_word_ends_.empty()) {
    const auto first = std::find_if(logits.begin(), logits.end(), [](float logit) { return logit > -INFINITY; });
    if (first != logits.end()) last_resort = static_cast<int32_t>(first - logits.begin());
    ban_bad_words(logits);
    if (may_not_end) {
      for (const int32_t token : end_tokens_) logits[token] = -INFINITY;
    }
  }
  for (const auto& [token, bias] : params.logit_bias) logits[token] = static_cast<float>(logits[token] + bias);
  if (counts_) penalise(logits);
  const int32_t token = sampler_.sample(logits, position, params, key_);
  return logits[token] == -INFINITY ? last_resort : token;
}

}  // namespace deepinfer
