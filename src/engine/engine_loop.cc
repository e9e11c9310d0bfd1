#include "engine/engine_loop.h"

#include <algorithm>

namespace deepinfer {

EngineLoop::EngineLoop(const EngineLoopOptions& options, Scheduler& scheduler, KvCache& cache, Executor& executor,
                       TierWorker* disk)
    : options_(options), scheduler_(scheduler), cache_(cache), executor_(executor), disk_(disk) {
  thread_ = std::thread([this] { run(); });
}

EngineLoop::~EngineLoop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = draining_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Status EngineLoop::submit(PreparedRequest request) {
  const auto count = static_cast<int64_t>(request.inputs.size());
  {
    const std::lock_guard lock(mutex_);
    if (draining_) return Status(ErrorCode::kUnavailable, "the engine is shutting down and takes no further requests");
    if (num_queued_ + count > options_.max_queued) {
      return Status(ErrorCode::kUnavailable,
                    fmt::format("the queue is full: {} sequences wait and the request has {} (max_queued_requests {}); "
                                "try again later",
                                num_queued_, count, options_.max_queued));
    }
    num_queued_ += count;
    ++num_active_;
    arrivals_.push_back(std::move(request));
  }
  changed_.notify_all();
  return Status();
}

void EngineLoop::cancel(RequestId id) {
  {
    const std::lock_guard lock(mutex_);
    cancels_.push_back(id);
  }
  changed_.notify_all();
}

void EngineLoop::drain() {
  std::unique_lock lock(mutex_);
  draining_ = true;
  changed_.wait(lock, [this] { return num_active_ == 0; });
}

EngineStats EngineLoop::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

std::string EngineLoop::timer_table() const {
  return deepinfer::timer_table({&admit_timer_, &schedule_timer_, &launch_timer_, &collect_timer_, &apply_timer_,
                                 &deliver_timer_, &device_timer_, &idle_timer_});
}

void EngineLoop::run() {
  while (admit()) {
    if (overdue_possible_) expire_overdue();
    const Turn turn = step();
    deliver();
    refresh_stats();
    if (turn != Turn::kWorked) {
      steps_follow_ = false;
      wait_for_work(turn);
    }
    if (!device_error_.empty()) break;
  }
  while (in_flight_ > 0) collect_one();
  if (!device_error_.empty()) {
    // The device is gone, and with it every answer; whoever still comes is told so.
    {
      const std::lock_guard lock(mutex_);
      draining_ = true;
    }
    while (true) {
      const bool goes_on = admit();
      abort_all(FinishReason::kFailed);
      if (!goes_on) break;
      wait_for_work(Turn::kIdle);
    }
  }
  abort_all(FinishReason::kAborted);
  if (disk_ != nullptr && device_error_.empty()) save_to_disk();
}

// Hands on what the cache wants on disk or from it, and tells it what became of that.
void EngineLoop::talk_to_disk() {
  if (disk_ == nullptr) return;
  disk_results_.clear();
  disk_->poll(disk_results_);
  for (const DiskJobResult& result : disk_results_) cache_.disk_job_done(result);
  disk_jobs_.clear();
  cache_.take_disk_jobs(disk_jobs_);
  for (DiskJob& job : disk_jobs_) disk_->submit(std::move(job));
}

// At the end: through host memory, as much at a time as that holds.
void EngineLoop::save_to_disk() {
  for (int64_t left = 1, before = 0; left > 0 && left != before;) {
    before = left;
    left = cache_.save_all_units();
    executor_.launch(scheduler_.plan_placeholder());
    scheduler_.apply(executor_.collect(), *this);
    talk_to_disk();
    disk_->drain();
    talk_to_disk();
  }
}

// Takes over what other threads left. False: the loop shall end.
bool EngineLoop::admit() {
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_ && arrivals_.empty() && cancels_.empty()) return true;
    taken_.swap(arrivals_);
    taken_cancels_.swap(cancels_);
  }
  const ScopedTimer timer(admit_timer_);
  for (PreparedRequest& request : taken_) start(std::move(request));
  taken_.clear();
  for (const RequestId id : taken_cancels_) {
    if (const auto found = requests_.find(id); found != requests_.end()) abort(*found->second);
  }
  taken_cancels_.clear();
  const std::lock_guard lock(mutex_);
  return !stopping_;
}

void EngineLoop::start(PreparedRequest prepared) {
  ActiveRequest& request = *prepared.active;
  requests_[request.id()] = std::move(prepared.active);
  overdue_possible_ |= request.deadline().has_value();
  for (size_t i = 0; i < prepared.inputs.size(); ++i) {
    NewSequence sequence{
        .input = std::move(prepared.inputs[i]), .priority = request.request().priority, .salt = prepared.salt};
    // Further choices share the prompt that the first one computes.
    if (i > 0) sequence.after = request.sequence(0);
    Result<SequenceHandle> handle = scheduler_.submit(std::move(sequence));
    DI_CHECK(handle.ok(), "the scheduler refused what the queue had room for: {}", handle.status().message());
    request.set_sequence(static_cast<int32_t>(i), handle.value());
    owners_[key(handle.value())] = {&request, static_cast<int32_t>(i)};
  }
}

// Plans and launches a step and applies the one before it.
EngineLoop::Turn EngineLoop::step() {
  talk_to_disk();
  const StepPlan* plan;
  {
    const ScopedTimer timer(schedule_timer_);
    const BallotRecord ballot = scheduler_.ballot();
    const StepKind kind = vote({&ballot, 1}, options_.voting, voting_state_);
    plan = &scheduler_.plan(kind);
    // Blocks were short for the prompts that wait.
    if (plan->items.empty() && kind == StepKind::kPrefill) plan = &scheduler_.plan(StepKind::kDecode);
  }
  const bool planned = !plan->items.empty();
  if (planned) {
    const ScopedTimer timer(launch_timer_);
    executor_.launch(*plan);
    ++in_flight_;
    for (const SlotStart& start : plan->starts) owners_.at(key(scheduler_.owner_of(start.slot))).request->on_started();
  }
  const int keep = options_.overlap && planned ? 1 : 0;
  if (in_flight_ == 0) {
    if (scheduler_.num_loading() > 0) return Turn::kWaitsForDisk;
    DI_CHECK(scheduler_.idle(), "{} sequences wait, {} have slots, and no step can be planned",
             scheduler_.num_waiting(), scheduler_.num_running());
    return Turn::kIdle;
  }
  while (in_flight_ > keep) collect_one();
  return Turn::kWorked;
}

void EngineLoop::collect_one() {
  const StepResult* result;
  {
    const ScopedTimer timer(collect_timer_);
    result = &executor_.collect();
  }
  --in_flight_;
  device_timer_.add(result->device_seconds);
  device_seconds_ += result->device_seconds;
  if (steps_follow_) {
    idle_timer_.add(result->idle_seconds);
    idle_seconds_ += result->idle_seconds;
  }
  steps_follow_ = true;
  if (!result->error.empty() && device_error_.empty()) device_error_ = result->error;
  if (!device_error_.empty()) return;
  const ScopedTimer timer(apply_timer_);
  scheduler_.apply(*result, *this);
}

void EngineLoop::abort(const ActiveRequest& request) {
  for (int32_t i = 0; i < request.request().sampling.n; ++i) {
    scheduler_.abort(request.sequence(i), FinishReason::kAborted, *this);
  }
}

void EngineLoop::abort_all(FinishReason reason) {
  std::vector<std::pair<uint64_t, Owner>> left(owners_.begin(), owners_.end());
  std::sort(left.begin(), left.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second.request->id(), a.second.choice) < std::pair(b.second.request->id(), b.second.choice);
  });
  for (const auto& [handle, owner] : left) {
    scheduler_.abort(owner.request->sequence(owner.choice), reason, *this);
  }
  deliver();
}

void EngineLoop::expire_overdue() {
  const ActiveRequest::Clock::time_point now = ActiveRequest::Clock::now();
  overdue_possible_ = false;
  for (const auto& [id, request] : requests_) {
    if (!request->deadline()) continue;
    overdue_possible_ = true;
    if (*request->deadline() <= now) abort(*request);
  }
}

void EngineLoop::deliver() {
  if (news_.empty()) return;
  const ScopedTimer timer(deliver_timer_);
  // One may be named more than once: its news go out the first time.
  for (ActiveRequest* request : news_) {
    if (request->deliver(options_.fingerprint)) finished_.push_back(request->id());
  }
  news_.clear();
  if (finished_.empty()) return;
  for (const RequestId id : finished_) requests_.erase(id);
  {
    const std::lock_guard lock(mutex_);
    num_active_ -= finished_.size();
  }
  finished_.clear();
  changed_.notify_all();
}

void EngineLoop::wait_for_work(Turn turn) {
  const auto has_work = [this] { return stopping_ || !arrivals_.empty() || !cancels_.empty(); };
  std::unique_lock lock(mutex_);
  if (turn == Turn::kWaitsForDisk) {
    changed_.wait_for(lock, std::chrono::microseconds(100), has_work);
  } else {
    changed_.wait(lock, has_work);
  }
}

void EngineLoop::refresh_stats() {
  const SchedulerCounters& c = scheduler_.counters();
  double used = 0, blocks = 0;
  for (size_t g = 0; g < cache_.layout().groups.size(); ++g) {
    const double bytes = static_cast<double>(cache_.layout().groups[g].block_bytes);
    used += bytes * (cache_.capacity(static_cast<int>(g)) - cache_.num_free(static_cast<int>(g)));
    blocks += bytes * cache_.capacity(static_cast<int>(g));
  }
  const std::lock_guard lock(mutex_);
  num_queued_ = scheduler_.num_waiting();
  for (const PreparedRequest& request : arrivals_) num_queued_ += static_cast<int64_t>(request.inputs.size());
  stats_ = {.waiting = num_queued_,
            .running = scheduler_.num_running(),
            .prefill_steps = c.steps[static_cast<int>(StepKind::kPrefill)],
            .decode_steps = c.steps[static_cast<int>(StepKind::kDecode)],
            .prompt_tokens_computed = c.prefill_tokens,
            .prompt_tokens_cached = c.cached_tokens,
            .tokens_delivered = tokens_delivered_,
            .preemptions = c.preemptions,
            .wasted_rows = c.wasted_rows,
            .device_seconds = device_seconds_,
            .device_idle_seconds = idle_seconds_,
            .cache_units = cache_.counters().units,
            .cache_used = blocks > 0 ? used / blocks : 0};
}

bool EngineLoop::on_token(SequenceHandle sequence, int32_t token, const TokenLogprobs* logprobs) {
  const Owner owner = owners_.at(key(sequence));
  ++tokens_delivered_;
  if (news_.empty() || news_.back() != owner.request) news_.push_back(owner.request);
  return owner.request->on_token(owner.choice, token, logprobs);
}

void EngineLoop::on_prompt_logprobs(SequenceHandle sequence, std::span<const TokenLogprobs> logprobs) {
  const Owner owner = owners_.at(key(sequence));
  if (owner.choice == 0) owner.request->on_prompt_logprobs(logprobs);
}

void EngineLoop::on_finished(const Sequence& sequence, const FinishedSequence& how) {
  const Owner owner = owners_.at(key(sequence.handle));
  owners_.erase(key(sequence.handle));
  if (how.end_token >= 0) ++tokens_delivered_;
  news_.push_back(owner.request);
  owner.request->on_ending(sequence);
  const std::vector<int32_t>& eos = options_.eos_tokens;
  const bool is_eos = std::find(eos.begin(), eos.end(), how.end_token) != eos.end();
  std::string error;
  if (how.reason == FinishReason::kFailed) {
    error = device_error_.empty() ? "the model's logits are not finite numbers: the checkpoint may be damaged"
                                  : device_error_;
  }
  owner.request->on_finished(owner.choice, how.reason, how.end_token, how.end_token >= 0 && !is_eos, std::move(error));
}

}  // namespace deepinfer
