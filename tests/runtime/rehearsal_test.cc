// After a rehearsal the largest steps need no memory that they have not got.
#include "runtime/rehearsal.h"

#include <gmock/gmock.h>

#include "model/golden_model.h"
#include "model/separate_memory_device.h"

namespace deepinfer {
namespace {

using testing::HasSubstr;

constexpr int64_t kLength = 512;
constexpr StepInputs::Shape kLargest = {.tokens = 200, .logits = 8};

struct Rig {
  explicit Rig(const std::string& name) {
    auto made = std::make_unique<SeparateMemoryDevice>();
    device = made.get();
    model = std::make_unique<GoldenModel>(name, Numerics::kOfficial, std::move(made));
  }
  SeparateMemoryDevice* device;
  std::unique_ptr<GoldenModel> model;
};

TEST(Rehearsal, TheLargestStepsFindTheirMemoryTaken) {
  for (const char* name : {"tiny_full", "tiny_noengram"}) {
    Rig rig(name);
    Model& model = **rig.model;
    const int64_t before = rig.device->used_bytes();
    const Status status = rehearse(*rig.device, model, kLargest, kLength);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_GT(rig.device->used_bytes(), before);
    // A sequence with memory for all its rows, and from here on no more.
    SequenceState state = model.make_placed_sequence();
    ASSERT_TRUE(model.restart(state, {}, kLength).ok());
    std::vector<std::shared_ptr<std::byte>> blocks;
    const std::vector<CacheGroup>& groups = model.kv_layout().cache.groups;
    for (size_t g = 0; g < groups.size(); ++g) {
      for (int64_t b = 0; b < (kLength + groups[g].tokens_per_block - 1) / groups[g].tokens_per_block; ++b) {
        blocks.push_back(rig.device->allocate(groups[g].block_bytes).value());
        state.place_block(static_cast<int>(g), b, blocks.back().get());
      }
    }
    rig.device->set_limit(rig.device->used_bytes());
    const std::vector<int32_t> tokens = random_tokens(kLength, model.config().vocab_size, 1);
    std::vector<float> logits, on_cpu;
    for (const int64_t count : {200, 200, 1, 1, 1, 7}) {
      const SequenceStep step{&state, std::span(tokens).subspan(state.length(), count)};
      const Status ran = model.forward({&step, 1}, logits);
      ASSERT_TRUE(ran.ok()) << ran.message();
    }
    // And what ran over nothing left no trace.
    GoldenModel cpu(name, Numerics::kOfficial);
    SequenceState there = cpu->make_sequence();
    const SequenceStep all{&there, std::span(tokens).first(state.length())};
    ASSERT_TRUE(cpu->forward({&all, 1}, on_cpu).ok());
    EXPECT_EQ(logits, on_cpu);
  }
}

TEST(Rehearsal, TellsWhatIsShort) {
  Rig rig("tiny_noengram");
  rig.device->set_limit(rig.device->used_bytes() + (64 << 10));
  const Status status = rehearse(*rig.device, **rig.model, kLargest, kLength);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), ErrorCode::kOutOfMemory);
  EXPECT_THAT(status.message(), HasSubstr("are free"));
  EXPECT_THAT(status.message(), HasSubstr("lower max_num_batched_tokens"));
}

}  // namespace
}  // namespace deepinfer
