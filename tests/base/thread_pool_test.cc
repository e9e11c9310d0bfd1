#include "base/thread_pool.h"

#include <atomic>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

// Plain counters, one a task: two runs of a task, or a result that its caller cannot see yet, are races for the
// sanitizer.
class Counted {
 public:
  explicit Counted(int64_t num_tasks) : counts_(num_tasks) {}
  void run_on(ThreadPool& pool) {
    pool.run(static_cast<int64_t>(counts_.size()), [&](int64_t task, int thread) {
      if (thread < 0 || thread >= pool.num_threads()) bad_thread_ = true;
      ++counts_[task];
    });
  }
  bool each_ran(int times) const {
    for (const int count : counts_) {
      if (count != times) return false;
    }
    return !bad_thread_;
  }

 private:
  std::vector<int> counts_;
  std::atomic<bool> bad_thread_{false};
};

TEST(ThreadPool, runs_every_task_once_with_any_number_of_threads_and_tasks) {
  for (const int threads : {1, 2, 3, 4, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (const int64_t tasks : {0, 1, 2, 3, 7, 64, 1000}) {
      Counted counted(tasks);
      counted.run_on(pool);
      EXPECT_TRUE(counted.each_ran(1)) << threads << " threads, " << tasks << " tasks";
    }
  }
}

TEST(ThreadPool, loses_nothing_over_many_rounds_of_random_sizes) {
  std::mt19937 random(1);
  for (const int threads : {2, 3, 5}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 500; ++round) {
      Counted counted(random() % 20);
      counted.run_on(pool);
      ASSERT_TRUE(counted.each_ran(1)) << threads << " threads, round " << round;
    }
  }
}

TEST(ThreadPool, sees_in_each_round_what_the_round_before_wrote) {
  ThreadPool pool(3);
  constexpr int64_t kSize = 50;
  std::vector<int64_t> from(kSize, 1), to(kSize);
  for (int round = 0; round < 500; ++round) {
    pool.run(kSize, [&](int64_t task, int) { to[task] = (from[task] + from[(task + 7) % kSize]) % 1000003; });
    std::swap(from, to);
  }
  for (const int64_t value : from) EXPECT_EQ(value, from[0]) << "equal numbers stay equal";
}

TEST(ThreadPool, gives_each_thread_a_number_of_its_own) {
  ThreadPool pool(4);
  for (int round = 0; round < 200; ++round) {
    std::atomic<int> users[4] = {};
    std::atomic<bool> shared{false};
    pool.run(40, [&](int64_t, int thread) {
      if (users[thread].fetch_add(1) != 0) shared = true;
      users[thread].fetch_sub(1);
    });
    ASSERT_FALSE(shared);
  }
}

TEST(ThreadPool, starts_and_stops_without_work) {
  for (int round = 0; round < 50; ++round) {
    ThreadPool idle(1 + round % 5);
    auto used = std::make_unique<ThreadPool>(3);
    Counted counted(5);
    counted.run_on(*used);
    used.reset();
    EXPECT_TRUE(counted.each_ran(1));
  }
}

TEST(ThreadPool, goes_on_when_its_count_of_rounds_wraps) {
  ThreadPool pool(3, /*first_round=*/UINT32_MAX - 100);
  Counted counted(9);
  for (int round = 0; round < 300; ++round) counted.run_on(pool);
  EXPECT_TRUE(counted.each_ran(300));
}

}  // namespace
}  // namespace deepinfer
