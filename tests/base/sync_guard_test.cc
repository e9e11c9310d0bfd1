#include "base/sync_guard.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(SyncGuard, LetsWaitsThroughOutsideItsRegion) {
  { const NoBlocking guard("launch"); }
  about_to_wait("collect");
}

TEST(SyncGuardDeathTest, EndsTheProcessWithBothNamesWhenARegionWaits) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        const NoBlocking outer("launch of a step");
        { const NoBlocking inner("upload"); }
        about_to_wait("collect");
      },
      "collect waits inside launch of a step");
}

TEST(SyncGuard, CanBeSwitchedOff) {
  NoBlocking::disabled() = true;
  {
    const NoBlocking guard("launch");
    about_to_wait("collect");
  }
  NoBlocking::disabled() = false;
}

}  // namespace
}  // namespace deepinfer
