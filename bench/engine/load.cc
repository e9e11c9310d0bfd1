#include "engine/load.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <thread>

namespace deepinfer::bench {

Status Load::submit(Request request, Clock::time_point intended) {
  Answer* answer;
  {
    const std::lock_guard lock(mutex_);
    answer = &answers_.emplace_back();
    answer->intended = intended;
  }
  std::string error;
  const RequestId id = engine_.submit(
      std::move(request), [this, answer](RequestOutput update) { on_update(*answer, std::move(update)); }, error);
  if (id != 0) return Status();
  const std::lock_guard lock(mutex_);
  answers_.pop_back();
  return invalid_input("{}", error);
}

void Load::on_update(Answer& answer, RequestOutput update) {
  const Clock::time_point now = Clock::now();
  const std::lock_guard lock(mutex_);
  for (Completion& news : update.completions) {
    answer.times.insert(answer.times.end(), news.tokens.size(), now);
    answer.tokens.insert(answer.tokens.end(), news.tokens.begin(), news.tokens.end());
    answer.logprobs.insert(answer.logprobs.end(), news.logprobs.begin(), news.logprobs.end());
    if (update.finished) answer.finish_reason = news.finish_reason;
  }
  answer.num_cached_tokens = update.num_cached_tokens;
  if (update.finished) {
    answer.num_prompt_tokens = static_cast<int64_t>(update.prompt_tokens.size());
    answer.error = update.error;
    answer.finished_at = now;
    finish_times_.push_back(now);
  }
  changed_.notify_all();
}

void Load::wait_tokens(size_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return std::all_of(answers_.begin(), answers_.end(),
                       [&](const Answer& a) { return a.tokens.size() >= count || a.finish_reason; });
  });
}

Clock::time_point Load::wait_finished(size_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return finish_times_.size() >= count; });
  return count == 0 ? Clock::now() : finish_times_[count - 1];
}

std::vector<Answer> Load::take() {
  wait_finished(answers_.size());
  return {std::make_move_iterator(answers_.begin()), std::make_move_iterator(answers_.end())};
}

namespace {

LoadRun finish(Engine& engine, Load& load, const EngineStats& before, Clock::time_point begin, size_t count) {
  LoadRun run;
  run.seconds = seconds_between(begin, load.wait_finished(count));
  run.answers = load.take();
  // The engine's thread counts a step after it has delivered it.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  run.before = before;
  run.after = engine.stats();
  return run;
}

}  // namespace

Result<LoadRun> run_closed(Engine& engine, std::vector<Request> requests, size_t users) {
  const EngineStats before = engine.stats();
  Load load(engine);
  const Clock::time_point begin = Clock::now();
  for (size_t i = 0; i < requests.size(); ++i) {
    const Clock::time_point intended = i < users ? begin : load.wait_finished(i - users + 1);
    DI_RETURN_IF_ERROR(load.submit(std::move(requests[i]), intended));
  }
  return finish(engine, load, before, begin, requests.size());
}

Result<LoadRun> run_open(Engine& engine, std::vector<Request> requests, double rate, uint64_t seed) {
  std::mt19937_64 random(seed);
  const EngineStats before = engine.stats();
  Load load(engine);
  const Clock::time_point begin = Clock::now();
  double at = 0;
  for (Request& request : requests) {
    const double share = (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;
    at += -std::log(share) / rate;
    const Clock::time_point intended =
        begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(at));
    std::this_thread::sleep_until(intended);
    DI_RETURN_IF_ERROR(load.submit(std::move(request), intended));
  }
  return finish(engine, load, before, begin, requests.size());
}

}  // namespace deepinfer::bench
