#include "runtime/session.h"

#include <algorithm>
#include <chrono>

#include "sampling/validate.h"

namespace deepinfer {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

bool is_set(const std::atomic<bool>* flag) { return flag != nullptr && flag->load(std::memory_order_relaxed); }

}  // namespace

Session::Session(Model& model, int64_t chunk_tokens)
    : model_(model), chunk_tokens_(std::max<int64_t>(1, chunk_tokens)), state_(model.make_sequence()) {}

Status Session::check(std::span<const int32_t> tokens) const {
  const ModelConfig& config = model_.config();
  if (tokens.empty()) return invalid_input("the prompt is empty: give at least one token");
  if (static_cast<int64_t>(tokens.size()) > config.max_position_embeddings) {
    return invalid_input("{} tokens are more than the model's context of {}: shorten the text", tokens.size(),
                         config.max_position_embeddings);
  }
  for (const int32_t token : tokens) {
    if (token < 0 || token >= config.vocab_size) {
      return invalid_input("token id {}: the model's ids are 0 to {}", token, config.vocab_size - 1);
    }
  }
  return Status();
}

Status Session::check(const SamplingParams& sampling) const {
  DI_RETURN_IF_ERROR(validate(sampling, model_.config().vocab_size));
  const bool is_plain = sampling.n == 1 && sampling.stop.empty() && sampling.bad_words.empty() &&
                        sampling.stop_token_ids.empty() && !sampling.logprobs && !sampling.prompt_logprobs;
  if (is_plain) return Status();
  return unsupported(
      "a session writes one answer of tokens: leave n at 1, and stop, stop_token_ids, bad_words, logprobs and "
      "prompt_logprobs empty");
}

Result<std::span<const float>> Session::process(std::span<const int32_t> tokens, const std::atomic<bool>* cancel) {
  DI_RETURN_IF_ERROR(check(tokens));
  // The last token has to run to give logits, so a session that already holds all of them starts over.
  const bool continues =
      processed_.size() < tokens.size() && std::equal(processed_.begin(), processed_.end(), tokens.begin());
  if (!continues) {
    state_ = model_.make_sequence();
    processed_.clear();
  }
  while (processed_.size() < tokens.size()) {
    if (is_set(cancel)) return std::span<const float>();
    const std::span<const int32_t> rest = tokens.subspan(processed_.size());
    const std::span<const int32_t> chunk = rest.first(std::min<size_t>(rest.size(), chunk_tokens_));
    const SequenceStep step{&state_, chunk, chunk.size() == rest.size() ? LogitRows::kLast : LogitRows::kNone};
    DI_RETURN_IF_ERROR(model_.forward({&step, 1}, logits_));
    processed_.insert(processed_.end(), chunk.begin(), chunk.end());
  }
  return std::span<const float>(logits_);
}

Result<GenerationResult> Session::generate(std::span<const int32_t> prompt, const GenerationOptions& options,
                                           const std::function<void(int32_t)>& on_token) {
  DI_RETURN_IF_ERROR(check(options.sampling));
  GenerationResult result;
  result.num_prompt_tokens = static_cast<int64_t>(prompt.size());
  const bool continues = std::equal(processed_.begin(), processed_.end(), prompt.begin(),
                                    prompt.begin() + std::min(processed_.size(), prompt.size()));
  result.num_cached_tokens =
      continues && processed_.size() < prompt.size() ? static_cast<int64_t>(processed_.size()) : 0;

  auto start = std::chrono::steady_clock::now();
  std::vector<int32_t> tokens(prompt.begin(), prompt.end());
  DI_ASSIGN_OR_RETURN(std::span<const float> logits, process(tokens, options.cancel));
  result.prompt_seconds = seconds_since(start);
  start = std::chrono::steady_clock::now();
  const int64_t room = std::max<int64_t>(0, model_.config().max_position_embeddings - result.num_prompt_tokens);
  sampler_.reset({.params = &options.sampling,
                  .key = options.seed,
                  .vocab_size = model_.config().vocab_size,
                  .tokens = prompt,
                  .num_prompt_tokens = result.num_prompt_tokens,
                  .max_output_tokens = std::min(options.sampling.max_tokens, room + 1),
                  .end_tokens = options.stop_tokens});
  while (true) {
    if (logits.empty() || is_set(options.cancel)) {
      result.reason = FinishReason::kAborted;
      break;
    }
    const int32_t token = sampler_.choose(logits_, static_cast<int64_t>(tokens.size()));
    if (std::find(options.stop_tokens.begin(), options.stop_tokens.end(), token) != options.stop_tokens.end()) {
      result.reason = FinishReason::kStop;
      break;
    }
    tokens.push_back(token);
    sampler_.push(token);
    result.tokens.push_back(token);
    on_token(token);
    const bool full = static_cast<int64_t>(tokens.size()) >= model_.config().max_position_embeddings;
    if (static_cast<int64_t>(result.tokens.size()) >= options.sampling.max_tokens || full) break;
    DI_ASSIGN_OR_RETURN(logits, process(tokens, options.cancel));
  }
  result.decode_seconds = seconds_since(start);
  return result;
}

}  // namespace deepinfer
