// A step in which no sequence starts or ends allocates nothing in the scheduler, also where blocks fill up.
#include "allocation_counter.h"
#include "scheduler/steady_decode.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(SchedulerAllocations, ASteadyDecodeStepAllocatesNothing) {
  for (const int32_t num_sequences : {1, 64, 256}) {
    constexpr int64_t kSteps = 700;  // every group's blocks fill up several times in every sequence
    SteadyDecode run(num_sequences, kSteps + 20);
    run.step();
    const int64_t tokens = run.tokens();
    const int64_t before = allocation_count;
    for (int64_t i = 0; i < kSteps; ++i) run.step();
    EXPECT_EQ(allocation_count - before, 0) << num_sequences << " sequences";
    EXPECT_EQ(run.tokens() - tokens, kSteps * num_sequences) << "each sequence got a token a step";
  }
}

TEST(SchedulerAllocations, TheCounterCounts) {
  const int64_t before = allocation_count;
  const auto number = std::make_unique<int>(3);
  EXPECT_EQ(allocation_count - before, 1) << *number;
}

}  // namespace
}  // namespace deepinfer
