// ThreadPool: the engine's own workers. One caller at a time hands out a numbered set of tasks; workers and the caller
// take them in ascending order until none is left.
//
// Workers spin briefly and then sleep: on shared machines an unbounded spin costs a scheduler slice a call. Which
// thread runs which task is not fixed, so a task's result must depend on its number alone. No allocation in `run`.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <thread>
#include <type_traits>
#include <vector>

namespace deepinfer {

class ThreadPool {
 public:
  // num_threads: >= 1, counting the calling thread, so 1 starts no worker. first_round: for tests of the wrap. cpus: the
  // processor of each thread, over again if there are more threads; empty: the system chooses. The caller is not bound.
  explicit ThreadPool(int num_threads, uint32_t first_round = 0, std::span<const int> cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(task, thread) for every task in [0, num_tasks), thread in [0, num_threads()); returns when all are done.
  // Requires: one caller at a time, not from inside a task.
  template <typename Body>
  void run(int64_t num_tasks, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run_erased(
        num_tasks, [](void* b, int64_t task, int thread) { (*static_cast<Plain*>(b))(task, thread); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Function = void (*)(void* body, int64_t task, int thread);

  void run_erased(int64_t num_tasks, Function function, void* body);
  void work(int thread, uint32_t seen_round);
  void take_tasks(int thread);

  std::vector<std::thread> workers_;
  Function function_ = nullptr;
  void* body_ = nullptr;
  int64_t num_tasks_ = 0;
  alignas(64) std::atomic<int64_t> next_task_{0};
  alignas(64) std::atomic<uint32_t> round_;  // grows by two a run and wraps; the lowest bit asks workers to stop
  alignas(64) std::atomic<int> num_busy_{0};
};

}  // namespace deepinfer
