#include "base/timers.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(Timer, PercentilesAreWithinABucketOfTheTruth) {
  Timer timer("step");
  EXPECT_EQ(timer.percentile(0.5), 0);
  for (int i = 1; i <= 1000; ++i) timer.add(i * 1e-6);
  EXPECT_EQ(timer.count(), 1000);
  EXPECT_NEAR(timer.total(), 500.5e-3, 1e-9);
  EXPECT_EQ(timer.largest(), 1000e-6);
  for (const double share : {0.01, 0.5, 0.9, 0.99})
    EXPECT_NEAR(timer.percentile(share) / (share * 1e-3), 1, 0.1) << share;
}

TEST(Timer, TakesDurationsBeyondItsBuckets) {
  Timer timer("odd");
  timer.add(0);
  timer.add(1e9);
  EXPECT_LE(timer.percentile(0.5), 2e-8);
  EXPECT_EQ(timer.largest(), 1e9);
}

TEST(Timer, TableHasARowForEach) {
  Timer a("schedule"), b("launch");
  a.add(1e-3);
  const std::string table = timer_table({&a, &b});
  EXPECT_NE(table.find("schedule"), std::string::npos);
  EXPECT_NE(table.find("launch"), std::string::npos);
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 3);
}

}  // namespace
}  // namespace deepinfer
