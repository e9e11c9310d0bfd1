// ActiveRequest: one request in the engine: its answers so far as text and tokens, and the news that its caller has not
// had yet. The engine thread's alone.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "deepinfer/engine.h"
#include "deepinfer/request.h"
#include "scheduler/scheduler.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"

namespace deepinfer {

class ActiveRequest {
 public:
  using Clock = std::chrono::steady_clock;

  // tokenizer: null if the model has none, or the request wants no text.
  ActiveRequest(RequestId id, Request request, std::vector<int32_t> prompt, uint64_t seed, const Tokenizer* tokenizer,
                int64_t replay_begin, Engine::OnUpdate on_update);

  RequestId id() const { return id_; }
  const Request& request() const { return request_; }
  bool finished() const { return num_finished_ == choices_.size(); }
  std::optional<Clock::time_point> deadline() const { return deadline_; }

  SequenceHandle sequence(int32_t choice) const { return choices_[choice].sequence; }
  void set_sequence(int32_t choice, SequenceHandle sequence) { choices_[choice].sequence = sequence; }

  // True: the answer ends with this token, as a stop string says.
  bool on_token(int32_t choice, int32_t token, const TokenLogprobs* logprobs);
  void on_prompt_logprobs(std::span<const TokenLogprobs> logprobs);
  // Once a choice.
  void on_finished(int32_t choice, FinishReason reason, int32_t end_token, bool end_is_stop_token, std::string error);
  void on_started();                         // its first tokens run
  void on_ending(const Sequence& sequence);  // before on_finished

  // Hands what is new to the caller, if anything is. True: that was the last.
  bool deliver(const std::string& fingerprint);

 private:
  struct Choice {
    SequenceHandle sequence;
    std::optional<Detokenizer> detokenizer;
    std::optional<StopStrings> stops;
    std::string stop_reason;
    Completion news;
    bool has_news = false;
  };

  void add_text(Choice& choice, const std::string& text);

  RequestId id_;
  Request request_;
  std::vector<int32_t> prompt_;
  uint64_t seed_;
  int64_t replay_begin_;
  Engine::OnUpdate on_update_;
  std::vector<Choice> choices_;
  size_t num_finished_ = 0;
  std::vector<TokenLogprobs> prompt_logprobs_;
  std::string error_;
  int64_t num_cached_tokens_ = 0;
  RequestMetrics metrics_;
  Clock::time_point submitted_;
  std::optional<Clock::time_point> deadline_;
  bool has_news_ = false;
};

}  // namespace deepinfer
