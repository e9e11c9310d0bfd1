#include "engine/request_stream.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/sync_guard.h"

namespace deepinfer {
namespace {

template <typename T>
void append(std::vector<T>& to, std::vector<T>& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

void append_update(RequestOutput& total, RequestOutput update) {
  append(total.prompt_logprobs, update.prompt_logprobs);
  for (Completion& news : update.completions) {
    const auto at = std::find_if(total.completions.begin(), total.completions.end(),
                                 [&](const Completion& c) { return c.index == news.index; });
    if (at == total.completions.end()) {
      total.completions.push_back(std::move(news));
      continue;
    }
    at->text += news.text;
    append(at->tokens, news.tokens);
    append(at->logprobs, news.logprobs);
    at->cumulative_logprob += news.cumulative_logprob;
    at->finish_reason = news.finish_reason;
    at->stop_reason = std::move(news.stop_reason);
  }
  total.finished = update.finished;
  if (!update.error.empty()) total.error = std::move(update.error);
  if (!update.prompt_tokens.empty()) total.prompt_tokens = std::move(update.prompt_tokens);
  total.num_cached_tokens = update.num_cached_tokens;
  total.metrics = update.metrics;
}

void QueuedStream::push(Shared& shared, RequestOutput update) {
  {
    const std::lock_guard lock(shared.mutex);
    shared.ended = update.finished;
    if (shared.ready) {
      append_update(*shared.ready, std::move(update));
    } else {
      shared.ready = std::move(update);
    }
  }
  shared.changed.notify_one();
}

std::optional<RequestOutput> QueuedStream::take() { return std::exchange(shared_->ready, std::nullopt); }

std::optional<RequestOutput> QueuedStream::next() {
  about_to_wait("RequestStream::next");
  std::unique_lock lock(shared_->mutex);
  shared_->changed.wait(lock, [this] { return shared_->ready || shared_->ended; });
  return take();
}

std::optional<RequestOutput> QueuedStream::next_for(std::chrono::milliseconds timeout) {
  about_to_wait("RequestStream::next_for");
  std::unique_lock lock(shared_->mutex);
  shared_->changed.wait_for(lock, timeout, [this] { return shared_->ready || shared_->ended; });
  return take();
}

void QueuedStream::cancel() {
  std::function<void()> cancel;
  {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->ended) return;
    cancel = shared_->cancel;
  }
  if (cancel) cancel();
}

}  // namespace deepinfer
