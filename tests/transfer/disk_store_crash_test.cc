// A process that saves is killed at random moments, again and again, in one folder. Every unit that is found afterwards
// must be whole and right; what was acknowledged before the kill must be found.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "checkpoint/temp_folder.h"
#include "transfer/store_rig.h"

namespace deepinfer {
namespace {

// Saves units from `first` on until it is killed; tells each through the pipe when it is saved.
[[noreturn]] void save_until_killed(const DiskStoreOptions& options, uint64_t first, int pipe) {
  const auto store = DiskStore::open(options);
  if (!store->status().ok()) ::_exit(1);
  for (uint64_t i = first;; ++i) {
    if (!put(*store, test_unit(i))) ::_exit(2);
    if (::write(pipe, &i, sizeof(i)) != sizeof(i)) ::_exit(3);
  }
}

TEST(DiskStoreCrash, AKilledProcessLosesNothingThatItHadSavedAndLeavesNothingWrong) {
  const TempFolder folder;
  std::mt19937 random(7);
  uint64_t next = 0;
  int num_torn = 0;
  for (int round = 0; round < 60; ++round) {
    // Small segments and no eviction, so that everything acknowledged must be there.
    DiskStoreOptions options{.directory = folder.path(), .fingerprint = {1, 2}, .segment_bytes = 150000};
    // Half of the rounds write in small slow pieces, so that the kill falls into the middle of records.
    if (round % 2 == 1)
      options.write = [](int file, const iovec* parts, int, int64_t offset) {
        ::usleep(20);
        return ::pwrite(file, parts[0].iov_base, std::min<size_t>(parts[0].iov_len, 200), offset);
      };
    int pipes[2];
    ASSERT_EQ(::pipe(pipes), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::close(pipes[0]);
      save_until_killed(options, next, pipes[1]);
    }
    ::close(pipes[1]);
    std::this_thread::sleep_for(std::chrono::microseconds(4000 + random() % 40000));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself with " << WEXITSTATUS(status);
    const uint64_t first = next;
    for (uint64_t i = 0; ::read(pipes[0], &i, sizeof(i)) == sizeof(i);) next = i + 1;
    ::close(pipes[0]);

    options.write = {};
    const auto store = DiskStore::open(options);
    ASSERT_TRUE(store->status().ok());
    num_torn += store->counters().damaged_records > 0;
    for (const UnitRecord& unit : store->take_units()) {
      const uint64_t number = static_cast<uint64_t>(unit.tokens[0]) / 31;
      ASSERT_EQ(unit, test_unit(number).record);
      ASSERT_EQ(get(*store, test_unit(number)), Got::kRight) << number;
    }
    for (uint64_t i = first; i < next; ++i) ASSERT_EQ(get(*store, test_unit(i)), Got::kRight) << i;
    // One more may have been saved and not told.
    if (get(*store, test_unit(next)) == Got::kRight) ++next;
  }
  EXPECT_GT(next, 30u);
  EXPECT_GT(num_torn, 3);
  const auto store = DiskStore::open({.directory = folder.path(), .fingerprint = {1, 2}, .segment_bytes = 150000});
  for (uint64_t i = 0; i < next; ++i) ASSERT_EQ(get(*store, test_unit(i)), Got::kRight) << i;
}

}  // namespace
}  // namespace deepinfer
