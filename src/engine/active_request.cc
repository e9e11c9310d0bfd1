#include "engine/active_request.h"

#include <algorithm>

namespace deepinfer {
namespace {

double seconds_between(ActiveRequest::Clock::time_point begin, ActiveRequest::Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

ActiveRequest::ActiveRequest(RequestId id, Request request, std::vector<int32_t> prompt, uint64_t seed,
                             const Tokenizer* tokenizer, int64_t replay_begin, Engine::OnUpdate on_update)
    : id_(id),
      request_(std::move(request)),
      prompt_(std::move(prompt)),
      seed_(seed),
      replay_begin_(replay_begin),
      on_update_(std::move(on_update)),
      choices_(request_.sampling.n),
      submitted_(Clock::now()) {
  if (request_.timeout_seconds > 0) {
    // Longer than a clock counts is as good as none.
    const double seconds = std::min(request_.timeout_seconds, 1e9);
    deadline_ = submitted_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    choice.news.index = static_cast<int32_t>(i);
    if (tokenizer == nullptr) continue;
    choice.detokenizer.emplace(*tokenizer, request_.sampling.skip_special_tokens ? Detokenizer::Controls::kHide
                                                                                 : Detokenizer::Controls::kShow);
    if (!request_.sampling.stop.empty()) {
      choice.stops.emplace(request_.sampling.stop, request_.sampling.include_stop_str_in_output);
    }
  }
}

void ActiveRequest::add_text(Choice& choice, const std::string& text) {
  if (!choice.stops) {
    choice.news.text += text;
    return;
  }
  StopStrings::Outcome outcome = choice.stops->push(text);
  choice.news.text += outcome.text;
  if (outcome.stop && choice.stop_reason.empty()) choice.stop_reason = request_.sampling.stop[*outcome.stop];
}

bool ActiveRequest::on_token(int32_t index, int32_t token, const TokenLogprobs* logprobs) {
  Choice& choice = choices_[index];
  if (metrics_.first_token_seconds == 0) metrics_.first_token_seconds = seconds_between(submitted_, Clock::now());
  choice.news.tokens.push_back(token);
  if (logprobs != nullptr) {
    choice.news.logprobs.push_back(*logprobs);
    choice.news.cumulative_logprob += logprobs->logprob;
  }
  choice.has_news = has_news_ = true;
  if (choice.detokenizer) add_text(choice, choice.detokenizer->push(token));
  return !choice.stop_reason.empty();
}

void ActiveRequest::on_prompt_logprobs(std::span<const TokenLogprobs> logprobs) {
  prompt_logprobs_.insert(prompt_logprobs_.end(), logprobs.begin(), logprobs.end());
}

void ActiveRequest::on_started() {
  if (metrics_.queue_seconds == 0) metrics_.queue_seconds = seconds_between(submitted_, Clock::now());
}

void ActiveRequest::on_ending(const Sequence& sequence) {
  num_cached_tokens_ = std::max(num_cached_tokens_, sequence.num_cached_tokens);
  metrics_.num_preemptions += sequence.num_preemptions;
}

void ActiveRequest::on_finished(int32_t index, FinishReason reason, int32_t end_token, bool end_is_stop_token,
                                std::string error) {
  Choice& choice = choices_[index];
  DI_CHECK(!choice.news.finish_reason, "choice {} of request {} ended twice", index, id_);
  if (end_token >= 0) {
    choice.news.tokens.push_back(end_token);
    if (end_is_stop_token) choice.stop_reason = std::to_string(end_token);
  }
  if (choice.detokenizer) {
    const bool stopped = !choice.stop_reason.empty() && end_token < 0;
    const std::string rest = choice.detokenizer->finish();
    if (!stopped) {
      add_text(choice, rest);
      if (choice.stops) choice.news.text += choice.stops->finish();
    }
  }
  choice.news.finish_reason = reason;
  choice.news.stop_reason = choice.stop_reason;
  choice.has_news = has_news_ = true;
  if (!error.empty()) error_ = std::move(error);
  if (++num_finished_ == choices_.size()) metrics_.total_seconds = seconds_between(submitted_, Clock::now());
}

bool ActiveRequest::deliver(const std::string& fingerprint) {
  if (!has_news_) return false;
  has_news_ = false;
  RequestOutput out{.id = id_, .finished = finished(), .error = error_};
  for (Choice& choice : choices_) {
    if (!choice.has_news) continue;
    choice.has_news = false;
    const int32_t index = choice.news.index;
    out.completions.push_back(std::exchange(choice.news, Completion{.index = index}));
    // The reason is told once, and kept so that a second end would be noticed.
    choice.news.finish_reason = out.completions.back().finish_reason;
  }
  out.prompt_logprobs = std::exchange(prompt_logprobs_, {});
  out.num_cached_tokens = num_cached_tokens_;
  out.seq_seed = seed_;
  out.replay_begin = replay_begin_;
  out.fingerprint = fingerprint;
  out.metrics = metrics_;
  if (out.finished) out.prompt_tokens = prompt_;
  on_update_(std::move(out));
  return finished();
}

}  // namespace deepinfer
