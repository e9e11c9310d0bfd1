#include "transfer/disk_store.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "checkpoint/temp_folder.h"
#include "transfer/store_rig.h"

namespace deepinfer {
namespace {

namespace fs = std::filesystem;

class DiskStoreTest : public ::testing::Test {
 protected:
  DiskStoreOptions options() const {
    return {.directory = folder_.path() + "/cache", .fingerprint = {1, 2}, .segment_bytes = 200000};
  }
  std::vector<fs::path> segment_files() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path()))
      if (entry.path().filename().string().starts_with("segment-")) files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    return files;
  }
  // How many of units [0, count) are there; none may be wrong.
  static int num_right(DiskStore& store, uint64_t count) {
    int right = 0;
    for (uint64_t i = 0; i < count; ++i) {
      const Got got = get(store, test_unit(i));
      EXPECT_NE(got, Got::kWrong) << "unit " << i;
      right += got == Got::kRight;
    }
    return right;
  }

  TempFolder folder_;
};

TEST_F(DiskStoreTest, UnitsComeBackAtOnceAndAfterARestart) {
  {
    const auto store = DiskStore::open(options());
    ASSERT_TRUE(store->status().ok()) << store->status().message();
    for (uint64_t i = 0; i < 40; ++i) ASSERT_TRUE(put(*store, test_unit(i)));
    EXPECT_EQ(num_right(*store, 40), 40);
  }
  EXPECT_GT(segment_files().size(), 3u);
  const auto store = DiskStore::open(options());
  const std::vector<UnitRecord> found = store->take_units();
  ASSERT_EQ(found.size(), 40u);
  for (uint64_t i = 0; i < 40; ++i) EXPECT_EQ(found[i], test_unit(i).record);
  EXPECT_EQ(num_right(*store, 40), 40);
  EXPECT_EQ(store->counters().damaged_records, 0);
}

TEST_F(DiskStoreTest, WhatIsThereIsNotWrittenAgain) {
  const auto store = DiskStore::open(options());
  ASSERT_TRUE(put(*store, test_unit(1)));
  const int64_t bytes = store->counters().bytes;
  ASSERT_TRUE(put(*store, test_unit(1)));
  EXPECT_EQ(store->counters().bytes, bytes);
}

TEST_F(DiskStoreTest, AUnitWithoutAllItsBlocksIsNotTaken) {
  const auto store = DiskStore::open(options());
  const TestUnit unit = test_unit(1);
  EXPECT_FALSE(store->put_unit(unit.key, unit.record.salt, unit.record.tokens, unit.record.blocks));
  EXPECT_EQ(get(*store, unit), Got::kNothing);
}

TEST_F(DiskStoreTest, AKeyAloneIsNoProofTheTokensMustBeTheSame) {
  const auto store = DiskStore::open(options());
  TestUnit unit = test_unit(1);
  ASSERT_TRUE(put(*store, unit));
  const TestUnit original = unit;
  unit.record.tokens[1] += 1;
  EXPECT_FALSE(put(*store, unit));
  EXPECT_EQ(get(*store, unit), Got::kNothing);
  unit = original;
  unit.record.salt += 1;
  EXPECT_EQ(get(*store, unit), Got::kNothing);
  EXPECT_EQ(get(*store, original), Got::kRight);
}

TEST_F(DiskStoreTest, ABlockOfAnotherSizeOrGroupIsNotThere) {
  const auto store = DiskStore::open(options());
  ASSERT_TRUE(store->put_block(test_key(1), 1, test_bytes(test_key(1), 1)));
  std::vector<std::byte> out(test_block_bytes(1));
  EXPECT_TRUE(store->get_block(test_key(1), 1, out));
  EXPECT_FALSE(store->get_block(test_key(1), 0, out));
  ASSERT_TRUE(store->put_block(test_key(2), 1, test_bytes(test_key(2), 1)));
  out.resize(out.size() + 1);
  EXPECT_FALSE(store->get_block(test_key(2), 1, out));
}

TEST_F(DiskStoreTest, TheBoundHoldsAndWholeSegmentsGoOldestFirst) {
  DiskStoreOptions small = options();
  small.max_bytes = 800000;
  const auto store = DiskStore::open(small);
  std::set<uint64_t> alive;
  for (uint64_t i = 0; i < 200; ++i) {
    ASSERT_TRUE(put(*store, test_unit(i)));
    alive.insert(i);
    for (const ContentKey& gone : store->take_gone()) alive.erase(gone.low - 1000000);
    ASSERT_LE(store->counters().bytes, 800000);
    ASSERT_EQ(get(*store, test_unit(i)), Got::kRight);
  }
  EXPECT_GT(store->counters().segments_evicted, 5);
  EXPECT_EQ(store->counters().units, static_cast<int64_t>(alive.size()));
  // What was not reported gone is there, and what is there are the newest.
  for (uint64_t i = 0; i < 200; ++i)
    EXPECT_EQ(get(*store, test_unit(i)), alive.contains(i) ? Got::kRight : Got::kNothing) << i;
  EXPECT_GE(*alive.begin(), 150u);
  uintmax_t on_disk = 0;
  for (const fs::path& file : segment_files()) on_disk += fs::file_size(file);
  EXPECT_EQ(static_cast<int64_t>(on_disk), store->counters().bytes);
}

TEST_F(DiskStoreTest, ASmallerBoundIsKeptFromTheStart) {
  {
    const auto store = DiskStore::open(options());
    for (uint64_t i = 0; i < 60; ++i) ASSERT_TRUE(put(*store, test_unit(i)));
  }
  DiskStoreOptions small = options();
  small.max_bytes = 500000;
  const auto store = DiskStore::open(small);
  EXPECT_LE(store->counters().bytes, 500000);
  EXPECT_GT(num_right(*store, 60), 2);
}

TEST_F(DiskStoreTest, ManyShortRunsDoNotLeaveManyFiles) {
  for (uint64_t i = 0; i < 20; ++i) {
    const auto store = DiskStore::open(options());
    if (i % 4 == 0) {
      ASSERT_TRUE(put(*store, test_unit(i)));
    }
  }
  EXPECT_LE(segment_files().size(), 3u);
  const auto store = DiskStore::open(options());
  EXPECT_EQ(num_right(*store, 20), 5);
}

TEST_F(DiskStoreTest, FlippedBitsAreNoticedWherever) {
  {
    const auto store = DiskStore::open(options());
    for (uint64_t i = 0; i < 12; ++i) ASSERT_TRUE(put(*store, test_unit(i)));
  }
  std::mt19937 random(5);
  const std::vector<fs::path> files = segment_files();
  int num_lost = 0;
  int64_t num_noticed = 0;
  for (int round = 0; round < 150; ++round) {
    const fs::path& file = files[random() % files.size()];
    const auto at = static_cast<std::streamoff>(random() % fs::file_size(file));
    const char flip = static_cast<char>(1 << (random() % 8));
    const auto flip_it = [&] {
      std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
      stream.seekg(at);
      const char old = static_cast<char>(stream.get());
      stream.seekp(at);
      stream.put(static_cast<char>(old ^ flip));
    };
    flip_it();
    // Opened before and after the damage; a copy, since opening may cut a file.
    const fs::path copy = folder_.path() + "/copy";
    fs::remove_all(copy);
    fs::copy(folder_.path() + "/cache", copy, fs::copy_options::recursive);
    DiskStoreOptions of_copy = options();
    of_copy.directory = copy;
    const auto store = DiskStore::open(of_copy);
    const int right = num_right(*store, 12);
    num_lost += right < 12;
    num_noticed += store->counters().damaged_records > 0;
    // Four units share one block; a flip that hit nothing but zeros between records harms none.
    EXPECT_GE(right, 8);
    if (right < 12) {
      EXPECT_GT(store->counters().damaged_records, 0);
    }
    flip_it();
  }
  EXPECT_GT(num_lost, 50);
  EXPECT_GE(num_noticed, num_lost);
}

TEST_F(DiskStoreTest, DamageUnderARunningStoreIsNoticedAndTheUnitCanBeSavedAgain) {
  const auto store = DiskStore::open(options());
  ASSERT_TRUE(put(*store, test_unit(1)));
  {
    std::fstream stream(segment_files()[0], std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(100);
    stream.put('x');
    stream.put('y');
  }
  EXPECT_EQ(get(*store, test_unit(1)), Got::kNothing);
  EXPECT_EQ(store->counters().damaged_records, 1);
  EXPECT_EQ(store->take_gone(), std::vector{test_unit(1).key});
  ASSERT_TRUE(put(*store, test_unit(1)));
  EXPECT_EQ(get(*store, test_unit(1)), Got::kRight);
}

TEST_F(DiskStoreTest, AFileCutAnywhereLosesUnitsButNeverGivesWrongBytes) {
  {
    DiskStoreOptions one = options();
    one.segment_bytes = 1 << 30;
    const auto store = DiskStore::open(one);
    for (uint64_t i = 0; i < 10; ++i) ASSERT_TRUE(put(*store, test_unit(i)));
  }
  const auto file = segment_files().at(0);
  const auto size = fs::file_size(file);
  int before = 10;
  for (uintmax_t cut = size; cut > 0; cut = cut > 3001 ? cut - 3001 : 0) {
    fs::resize_file(file, cut);
    const auto store = DiskStore::open(options());
    const int right = num_right(*store, 10);
    EXPECT_LE(right, before);
    before = right;
  }
  EXPECT_EQ(before, 0);
}

TEST_F(DiskStoreTest, AFileRemovedUnderARunningStoreDoesNoHarm) {
  const auto store = DiskStore::open(options());
  for (uint64_t i = 0; i < 20; ++i) ASSERT_TRUE(put(*store, test_unit(i)));
  for (const fs::path& file : segment_files()) fs::resize_file(file, 0);
  EXPECT_EQ(num_right(*store, 20), 0);
  EXPECT_GT(store->counters().read_failures, 0);
}

TEST_F(DiskStoreTest, OtherModelsHaveFoldersOfTheirOwn) {
  const auto store = DiskStore::open(options());
  ASSERT_TRUE(put(*store, test_unit(1)));
  DiskStoreOptions other = options();
  other.fingerprint = {1, 3};
  const auto another = DiskStore::open(other);
  ASSERT_TRUE(another->status().ok());
  EXPECT_EQ(num_right(*another, 3), 0);
}

TEST_F(DiskStoreTest, AFolderInUseOrThatCannotBeMadeGivesAStoreWithNothing) {
  const auto first = DiskStore::open(options());
  ASSERT_TRUE(put(*first, test_unit(1)));
  folder_.write("file", "");
  DiskStoreOptions bad = options();
  bad.directory = folder_.file("file");
  for (const DiskStoreOptions& refused : {options(), bad}) {
    const auto store = DiskStore::open(refused);
    ASSERT_FALSE(store->status().ok());
    EXPECT_NE(store->status().message().find(refused.directory), std::string::npos);
    EXPECT_FALSE(put(*store, test_unit(2)));
    EXPECT_EQ(get(*store, test_unit(1)), Got::kNothing);
    EXPECT_GT(store->counters().write_failures, 0);
  }
  EXPECT_EQ(get(*first, test_unit(1)), Got::kRight);
}

TEST_F(DiskStoreTest, AFolderWithoutPermissionGivesAStoreWithNothing) {
  if (::geteuid() == 0) {
    // The superuser may write anywhere, but not in here.
    DiskStoreOptions refused = options();
    refused.directory = "/proc/deepinfer_cache";
    EXPECT_FALSE(DiskStore::open(refused)->status().ok());
    return;
  }
  fs::create_directory(options().directory);
  fs::permissions(options().directory, fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_FALSE(DiskStore::open(options())->status().ok());
}

TEST_F(DiskStoreTest, ShortWritesAreContinued) {
  std::mt19937 random(1);
  DiskStoreOptions slow = options();
  slow.write = [&](int file, const iovec* parts, int, int64_t offset) -> ssize_t {
    if (random() % 5 == 0) {
      errno = EINTR;
      return -1;
    }
    return ::pwrite(file, parts[0].iov_base, std::min<size_t>(parts[0].iov_len, 1 + random() % 900), offset);
  };
  const auto store = DiskStore::open(slow);
  for (uint64_t i = 0; i < 10; ++i) ASSERT_TRUE(put(*store, test_unit(i)));
  EXPECT_EQ(num_right(*store, 10), 10);
}

TEST_F(DiskStoreTest, WritesThatFailNowAndThenLoseUnitsOnly) {
  std::mt19937 random(2);
  DiskStoreOptions bad = options();
  bad.write = [&](int file, const iovec* parts, int num_parts, int64_t offset) -> ssize_t {
    const uint32_t fate = random() % 400;
    if (fate < 10) {
      errno = EIO;
      return -1;
    }
    if (fate < 40) return ::pwrite(file, parts[0].iov_base, parts[0].iov_len / 2, offset);
    if (fate < 41) return 0;  // as if the disk were full
    return ::pwritev(file, parts, num_parts, offset);
  };
  std::set<uint64_t> saved;
  {
    const auto store = DiskStore::open(bad);
    for (uint64_t i = 0; i < 60; ++i)
      if (put(*store, test_unit(i))) saved.insert(i);
    for (const ContentKey& gone : store->take_gone()) saved.erase(gone.low - 1000000);
    EXPECT_GT(store->counters().write_failures, 3);
    EXPECT_EQ(num_right(*store, 60), static_cast<int>(saved.size()));
  }
  EXPECT_GT(saved.size(), 5u);
  const auto store = DiskStore::open(options());
  for (const uint64_t i : saved) EXPECT_EQ(get(*store, test_unit(i)), Got::kRight) << i;
  EXPECT_EQ(num_right(*store, 60), static_cast<int>(saved.size()));
}

TEST_F(DiskStoreTest, OnAFullDiskTheOldestSegmentsMakeWay) {
  int64_t room = 500000;  // of the whole disk
  DiskStoreOptions full = options();
  full.write = [&](int file, const iovec* parts, int num_parts, int64_t offset) -> ssize_t {
    uintmax_t used = 0;
    for (const fs::path& segment : segment_files()) used += fs::file_size(segment);
    if (static_cast<int64_t>(used) >= room) {
      errno = ENOSPC;
      return -1;
    }
    return ::pwritev(file, parts, num_parts, offset);
  };
  const auto store = DiskStore::open(full);
  for (uint64_t i = 0; i < 100; ++i) put(*store, test_unit(i));
  EXPECT_GT(store->counters().segments_evicted, 0);
  EXPECT_EQ(get(*store, test_unit(99)), Got::kRight);
  EXPECT_GT(num_right(*store, 100), 5);
}

// The system itself refuses, in the middle of a record.
TEST_F(DiskStoreTest, AFileSizeLimitLosesUnitsOnly) {
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const rlimit limit{.rlim_cur = 130000, .rlim_max = old_limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::set<uint64_t> saved;
  {
    const auto store = DiskStore::open(options());
    for (uint64_t i = 0; i < 30; ++i)
      if (put(*store, test_unit(i))) saved.insert(i);
    EXPECT_GT(store->counters().write_failures, 0);
    EXPECT_EQ(num_right(*store, 30), static_cast<int>(saved.size()));
  }
  ::setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_GT(saved.size(), 2u);
  EXPECT_LT(saved.size(), 30u);
  const auto store = DiskStore::open(options());
  EXPECT_EQ(num_right(*store, 30), static_cast<int>(saved.size()));
}

}  // namespace
}  // namespace deepinfer
