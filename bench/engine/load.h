// Load: requests sent to an engine, with a time stamp a token. Times count from the moment a request was meant to be
// sent, so that an engine which delays the sender does not look faster than it is.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "deepinfer/engine.h"

namespace deepinfer::bench {

using Clock = std::chrono::steady_clock;

inline double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

struct Answer {
  Clock::time_point intended, finished_at;
  std::vector<Clock::time_point> times;  // of each token
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;
  int64_t num_prompt_tokens = 0;
  int64_t num_cached_tokens = 0;
  std::optional<FinishReason> finish_reason;  // set when it has finished
  std::string error;

  double first_token_seconds() const { return times.empty() ? 0 : seconds_between(intended, times.front()); }
  double total_seconds() const { return seconds_between(intended, finished_at); }
};

class Load {
 public:
  explicit Load(Engine& engine) : engine_(engine) {}
  ~Load() { wait_finished(answers_.size()); }  // updates refer to it
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  Status submit(Request request, Clock::time_point intended = Clock::now());
  // Until every request has so many tokens, or has finished.
  void wait_tokens(size_t count);
  // Until so many requests have finished; the time when the last of these did.
  Clock::time_point wait_finished(size_t count);
  // Waits for all of them.
  std::vector<Answer> take();

 private:
  void on_update(Answer& answer, RequestOutput update);

  Engine& engine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Answer> answers_;  // addresses stay
  std::vector<Clock::time_point> finish_times_;
};

struct LoadRun {
  std::vector<Answer> answers;
  double seconds = 0;
  EngineStats before, after;
};

// So many users, each sends its next request when it has its answer.
Result<LoadRun> run_closed(Engine& engine, std::vector<Request> requests, size_t users);
// Requests a second on average, at moments drawn from `seed` beforehand (a Poisson process).
Result<LoadRun> run_open(Engine& engine, std::vector<Request> requests, double rate, uint64_t seed);

}  // namespace deepinfer::bench
