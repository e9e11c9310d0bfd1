#include "base/cpu_affinity.h"

#include <sched.h>

#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "base/thread_pool.h"

namespace deepinfer {
namespace {

TEST(CpuAffinity, NamesEachUsableProcessorOnce) {
  const std::vector<int> cpus = usable_cpus();
  ASSERT_FALSE(cpus.empty());
  EXPECT_EQ(std::set<int>(cpus.begin(), cpus.end()).size(), cpus.size());
}

TEST(CpuAffinity, ABoundThreadStaysWhereItIs) {
  for (const int cpu : usable_cpus()) {
    std::thread([cpu] {
      ASSERT_TRUE(bind_this_thread(cpu));
      EXPECT_EQ(sched_getcpu(), cpu);
    }).join();
  }
  EXPECT_FALSE(bind_this_thread(CPU_SETSIZE - 1)) << "no such processor here";
}

TEST(CpuAffinity, ThePoolBindsItsWorkersAndNotItsCaller) {
  const std::vector<int> cpus = usable_cpus();
  std::thread([&] {
    ThreadPool pool(3, 0, cpus);
    std::vector<int> seen(3, -1);
    std::atomic<int> arrived{0};
    pool.run(3, [&](int64_t, int thread) {
      seen[thread] = sched_getcpu();
      ++arrived;
      while (arrived < 3) std::this_thread::yield();  // so that each thread takes one
    });
    for (int i = 1; i < 3; ++i) EXPECT_EQ(seen[i], cpus[i % cpus.size()]);
    cpu_set_t set;
    sched_getaffinity(0, sizeof(set), &set);
    EXPECT_EQ(CPU_COUNT(&set), static_cast<int>(cpus.size()));
  }).join();
}

}  // namespace
}  // namespace deepinfer
