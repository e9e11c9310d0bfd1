#include "base/thread_pool.h"

#include <immintrin.h>

#include "base/check.h"
#include "base/cpu_affinity.h"

namespace deepinfer {
namespace {

constexpr int kSpins = 2000;  // pauses before sleeping: some tens of microseconds
constexpr uint32_t kStop = 1;
constexpr uint32_t kOneRound = 2;

// Waits until `value` differs from `old`: spins, then sleeps on the address.
template <typename T>
T wait_for_change(std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    const T now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    _mm_pause();
  }
  while (true) {
    const T now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    value.wait(old, std::memory_order_acquire);
  }
}

}  // namespace

ThreadPool::ThreadPool(int num_threads, uint32_t first_round, std::span<const int> cpus) : round_(first_round & ~kStop) {
  DI_CHECK(num_threads >= 1, "a pool of {} threads", num_threads);
  workers_.reserve(num_threads - 1);
  for (int i = 1; i < num_threads; ++i) {
    const int cpu = cpus.empty() ? -1 : cpus[i % cpus.size()];
    workers_.emplace_back([this, i, cpu, round = first_round & ~kStop] {
      if (cpu >= 0) bind_this_thread(cpu);  // one that may not be bound works as well
      work(i, round);
    });
  }
}

ThreadPool::~ThreadPool() {
  round_.fetch_or(kStop, std::memory_order_release);
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_erased(int64_t num_tasks, Function function, void* body) {
  if (num_tasks <= 0) return;
  if (workers_.empty() || num_tasks == 1) {
    for (int64_t task = 0; task < num_tasks; ++task) function(body, task, 0);
    return;
  }
  function_ = function;
  body_ = body;
  num_tasks_ = num_tasks;
  next_task_.store(0, std::memory_order_relaxed);
  num_busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  round_.fetch_add(kOneRound, std::memory_order_release);
  round_.notify_all();
  take_tasks(0);
  for (int busy = num_busy_.load(std::memory_order_acquire); busy != 0;) busy = wait_for_change(num_busy_, busy);
}

void ThreadPool::take_tasks(int thread) {
  while (true) {
    const int64_t task = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (task >= num_tasks_) return;
    function_(body_, task, thread);
  }
}

void ThreadPool::work(int thread, uint32_t seen_round) {
  while (true) {
    // A worker is never more than one round behind, so a count that wrapped still differs from the one seen last.
    seen_round = wait_for_change(round_, seen_round);
    if (seen_round & kStop) return;
    take_tasks(thread);
    if (num_busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) num_busy_.notify_one();
  }
}

}  // namespace deepinfer
