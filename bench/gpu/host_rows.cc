// What the host costs the card: the engine on a small model, with the card's idle time between two steps that follow on
// one another, and the scheduler by itself on a device that answers at once.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include <fmt/core.h>

#include "deepinfer/engine.h"
#include "gpu/sections.h"
#include "scheduler/steady_decode.h"

namespace deepinfer::bench {
namespace {

// Answers of one length, all at once. What is drawn does not matter, so long as the card draws it.
void answer(Engine& engine, int64_t num_sequences, int64_t length) {
  std::mutex mutex;
  std::condition_variable changed;
  int64_t left = num_sequences;
  std::string error;
  for (int64_t i = 0; i < num_sequences; ++i) {
    Request request;
    request.prompt_tokens = {1, 2, 3, static_cast<int32_t>(4 + i % 100)};
    request.sampling.max_tokens = length;
    request.sampling.ignore_eos = true;
    request.sampling.seq_seed = i;
    const RequestId id = engine.submit(
        std::move(request),
        [&](const RequestOutput& update) {
          if (!update.finished) return;
          const std::lock_guard lock(mutex);
          if (--left == 0) changed.notify_all();
        },
        error);
    DI_CHECK(id != 0, "a request was refused: {}", error);
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return left == 0; });
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

ScheduleRow time_scheduler(int32_t num_sequences, const std::atomic<int64_t>* allocations) {
  constexpr int64_t kWarmUp = 50, kSteps = 1000;
  SteadyDecode run(num_sequences, kWarmUp + kSteps + 40);
  for (int64_t i = 0; i < kWarmUp; ++i) run.step();
  std::vector<double> us;
  us.reserve(kSteps);
  const int64_t before = allocations != nullptr ? allocations->load() : 0;
  for (int64_t i = 0; i < kSteps; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const StepPlan& plan = run.schedule();
    us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
    run.launch(plan);
    run.apply();
  }
  ScheduleRow row{num_sequences, 0, -1};
  if (allocations != nullptr) row.allocations = static_cast<double>(allocations->load() - before) / kSteps;
  row.p50_us = median(us);
  return row;
}

}  // namespace

void bench_host(Parts& parts) {
  Results& results = parts.card.results();
  for (const int32_t n : {256, 1024}) results.schedule.push_back(time_scheduler(n, parts.allocations));
  if (parts.model.empty()) return;
  std::string error;
  const std::unique_ptr<Engine> engine = Engine::create({{"model", parts.model},
                                                         {"device", "cuda"},
                                                         {"gpu_memory_utilization", "0.03"},
                                                         {"max_num_seqs", "256"},
                                                         {"prefill_low_occupancy", "0"}},
                                                        error);
  if (engine == nullptr) {
    results.no_engine = error;
    return;
  }
  for (const int64_t n : parts.sizes({1, 16, 64, 256})) {
    const int64_t length = n < 64 ? 400 : 200;
    answer(*engine, n, length);  // records its steps
    const EngineStats before = engine->stats();
    answer(*engine, n, length);
    const EngineStats after = engine->stats();
    const auto steps =
        static_cast<double>(after.decode_steps + after.prefill_steps - before.decode_steps - before.prefill_steps);
    results.engine.push_back({n, 1e6 * (after.device_seconds - before.device_seconds) / steps,
                              1e6 * (after.device_idle_seconds - before.device_idle_seconds) / steps});
  }
}

void print_host(const Results& r) {
  if (!r.schedule.empty())
    fmt::print("\n{:<26}{:>10}{:>10}{:>20}\n", "scheduler", "sequences", "us, p50", "allocations a step");
  for (const ScheduleRow& row : r.schedule) {
    fmt::print("{:<26}{:>10}{:>10.1f}{:>20}\n", "schedule", row.sequences, row.p50_us,
               row.allocations < 0 ? "not counted" : fmt::format("{:.2f}", row.allocations));
  }
  if (!r.engine.empty()) fmt::print("\n{:<26}{:>10}{:>10}{:>10}\n", "engine, means", "sequences", "step us", "idle us");
  for (const EngineRow& row : r.engine) {
    fmt::print("{:<26}{:>10}{:>10.1f}{:>10.1f}\n", "decode, small model", row.sequences, row.step_us, row.idle_us);
  }
  if (!r.no_engine.empty()) fmt::print("no engine: {}\n", r.no_engine);
}

}  // namespace deepinfer::bench
