#include "deepinfer/llm.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "engine/request_stream.h"

namespace deepinfer {

std::unique_ptr<LLM> LLM::create(const Settings& settings, std::string& error) {
  std::unique_ptr<Engine> engine = Engine::create(settings, error);
  return engine ? std::unique_ptr<LLM>(new LLM(std::move(engine))) : nullptr;
}

std::vector<RequestOutput> LLM::generate(std::vector<Request> requests, std::string& error, const Progress& progress) {
  error.clear();
  std::vector<RequestOutput> outputs(requests.size());
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<RequestId> ids(requests.size(), 0);
  size_t finished = 0, submitted = 0;
  bool cancelled = false;

  // A refused request ends the call, but for a full queue: then it waits for others to finish.
  const auto submit_more = [&] {
    while (submitted < requests.size() && error.empty() && !cancelled) {
      const size_t i = submitted;
      const auto on_update = [&, i](RequestOutput update) {
        const std::lock_guard lock(mutex);
        const bool last = update.finished;
        if (outputs[i].id == 0) {
          outputs[i] = std::move(update);
        } else {
          append_update(outputs[i], std::move(update));
        }
        if (last) {
          ++finished;
          changed.notify_one();
        }
      };
      std::string refusal;
      ids[i] = engine_->submit(requests[i], on_update, refusal);
      if (ids[i] == 0) {
        const bool full = refusal.rfind("the queue is full", 0) == 0;
        const std::lock_guard lock(mutex);
        if (full && submitted > finished) return;
        error = "request " + std::to_string(i) + ": " + refusal;
        return;
      }
      ++submitted;
    }
  };

  std::unique_lock lock(mutex, std::defer_lock);
  size_t told = 0;
  while (true) {
    if (!cancelled) submit_more();
    const bool give_up = !error.empty() || cancelled;
    if (give_up) {
      for (size_t i = 0; i < submitted; ++i) engine_->cancel(ids[i]);
    }
    lock.lock();
    const size_t goal = give_up ? submitted : requests.size();
    changed.wait_for(lock, std::chrono::milliseconds(100), [&] { return finished > told || finished >= goal; });
    told = finished;
    const bool done = finished >= goal && submitted >= goal;
    lock.unlock();
    if (progress && !cancelled && !progress(told, requests.size())) cancelled = true;
    if (done && (!cancelled || give_up || submitted == finished)) break;
  }
  if (!error.empty()) outputs.clear();
  return outputs;
}

}  // namespace deepinfer
