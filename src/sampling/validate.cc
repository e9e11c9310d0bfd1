#include "sampling/validate.h"

#include <algorithm>
#include <cmath>
#include <string_view>

namespace deepinfer {
namespace {

// Inclusive at both ends; NaN is outside.
Status check_between(std::string_view name, double value, double low, double high) {
  if (value >= low && value <= high) return Status();
  return invalid_input("{} {}: give a number from {} to {}", name, value, low, high);
}

// Above 0, up to `high`.
Status check_above_zero(std::string_view name, double value, double high) {
  if (value > 0 && value <= high) return Status();
  return invalid_input("{} {}: give a number above 0, up to {}", name, value, high);
}

Status check_token(std::string_view name, int32_t token, int64_t vocab_size) {
  if (token >= 0 && token < vocab_size) return Status();
  return invalid_input("{}: token id {}: the model's ids are 0 to {}", name, token, vocab_size - 1);
}

Status check_tokens(std::string_view name, const std::vector<int32_t>& tokens, int64_t vocab_size) {
  for (const int32_t token : tokens) DI_RETURN_IF_ERROR(check_token(name, token, vocab_size));
  return Status();
}

Status check_strings(std::string_view name, const std::vector<std::string>& strings) {
  for (size_t i = 0; i < strings.size(); ++i) {
    if (strings[i].empty()) return invalid_input("{}: string {} is empty: leave it out", name, i);
  }
  return Status();
}

Status check_choosing(const SamplingParams& params) {
  if (!(params.temperature >= 0) || !std::isfinite(params.temperature)) {
    return invalid_input("temperature {}: give a number of at least 0 (0 takes the best token)", params.temperature);
  }
  if (params.top_k < -1) {
    return invalid_input("top_k {}: give a count of at least 1, or 0 or -1 for no limit", params.top_k);
  }
  DI_RETURN_IF_ERROR(check_above_zero("top_p", params.top_p, 1));
  DI_RETURN_IF_ERROR(check_between("min_p", params.min_p, 0, 1));
  DI_RETURN_IF_ERROR(check_between("presence_penalty", params.presence_penalty, -2, 2));
  DI_RETURN_IF_ERROR(check_between("frequency_penalty", params.frequency_penalty, -2, 2));
  return check_above_zero("repetition_penalty", params.repetition_penalty, 2);
}

Status check_logit_bias(const SamplingParams& params, int64_t vocab_size) {
  std::vector<int32_t> ids;
  for (const auto& [token, bias] : params.logit_bias) {
    DI_RETURN_IF_ERROR(check_token("logit_bias", token, vocab_size));
    DI_RETURN_IF_ERROR(check_between(fmt::format("logit_bias of token {}:", token), bias, -100, 100));
    ids.push_back(token);
  }
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice == ids.end()) return Status();
  return invalid_input("logit_bias: token id {} stands twice: give each token one bias", *twice);
}

Status check_ending(const SamplingParams& params) {
  if (params.max_tokens < 1) return invalid_input("max_tokens {}: give a count of at least 1", params.max_tokens);
  if (params.min_tokens < 0 || params.min_tokens > params.max_tokens) {
    return invalid_input("min_tokens {}: give a count from 0 to max_tokens, which is {}", params.min_tokens,
                         params.max_tokens);
  }
  DI_RETURN_IF_ERROR(check_strings("stop", params.stop));
  if (params.detokenize || params.stop.empty()) return Status();
  return invalid_input("stop with {} strings: they need text, so detokenize false cannot go with them",
                       params.stop.size());
}

}  // namespace

Status validate(const SamplingParams& params, int64_t vocab_size) {
  if (params.n < 1 || params.n > 128) return invalid_input("n {}: give a count from 1 to 128", params.n);
  DI_RETURN_IF_ERROR(check_choosing(params));
  DI_RETURN_IF_ERROR(check_logit_bias(params, vocab_size));
  DI_RETURN_IF_ERROR(check_tokens("allowed_token_ids", params.allowed_token_ids, vocab_size));
  DI_RETURN_IF_ERROR(check_strings("bad_words", params.bad_words));
  DI_RETURN_IF_ERROR(check_ending(params));
  DI_RETURN_IF_ERROR(check_tokens("stop_token_ids", params.stop_token_ids, vocab_size));
  if (params.logprobs) DI_RETURN_IF_ERROR(check_between("logprobs", *params.logprobs, 0, 20));
  if (params.prompt_logprobs) DI_RETURN_IF_ERROR(check_between("prompt_logprobs", *params.prompt_logprobs, 0, 20));
  return Status();
}

}  // namespace deepinfer
