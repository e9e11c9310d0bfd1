#include "backends/cpu/cpu_device.h"

#include <cstring>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/op_table.h"

namespace deepinfer {
namespace {

std::unique_ptr<Device> device() { return make_cpu_device({.num_threads = 2}).value(); }

bool is_aligned(const std::byte* p) { return reinterpret_cast<uintptr_t>(p) % 256 == 0; }

TEST(CpuDevice, allocates_memory_at_multiples_of_256_bytes_that_may_be_written_to_the_end) {
  const auto cpu = device();
  for (const int64_t bytes : {0, 1, 255, 256, 257, 1 << 20}) {
    for (const bool pinned : {false, true}) {
      const std::shared_ptr<std::byte> memory = (pinned ? cpu->allocate_pinned(bytes) : cpu->allocate(bytes)).value();
      ASSERT_NE(memory, nullptr);
      EXPECT_TRUE(is_aligned(memory.get())) << bytes;
      std::memset(memory.get(), 1, static_cast<size_t>(bytes));
    }
  }
}

TEST(CpuDevice, says_how_much_it_could_not_allocate) {
  const auto cpu = device();
  constexpr int64_t kTooMuch = int64_t{1} << 60;
  for (const Status& status : {cpu->allocate(kTooMuch).status(), cpu->allocate_pinned(kTooMuch).status()}) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.code(), ErrorCode::kOutOfMemory);
    EXPECT_THAT(status.message(), testing::HasSubstr(std::to_string(kTooMuch)));
  }
}

TEST(CpuDevice, shares_the_host_s_memory) {
  const auto cpu = device();
  EXPECT_TRUE(cpu->shares_host_memory());
  EXPECT_GT(cpu->free_bytes(), 0);
  const std::vector<std::byte> host(100, std::byte{7});
  const std::shared_ptr<const std::byte> resident = cpu->make_resident(host).value();
  EXPECT_EQ(resident.get(), host.data()) << "the same memory, not a copy";
}

TEST(CpuDevice, keeps_activations_in_fp32_whatever_the_model_rounds) {
  EXPECT_EQ(device()->activation_type(true), ElementType::kF32);
  EXPECT_EQ(device()->activation_type(false), ElementType::kF32);
}

TEST(CpuDevice, copies_at_once_and_records_nothing) {
  const auto cpu = device();
  const auto stream = cpu->make_stream();
  std::vector<int> from(1000), to(1000);
  std::iota(from.begin(), from.end(), 0);
  stream->copy(to.data(), from.data(), 1000 * sizeof(int));
  EXPECT_EQ(to, from);
  stream->copy(nullptr, nullptr, 0);
  EXPECT_TRUE(stream->synchronize().ok());
  EXPECT_FALSE(stream->can_record());
}

TEST(CpuDeviceDeathTest, an_op_that_it_lacks_ends_the_program_with_its_name) {
  const auto cpu = device();
  const auto stream = cpu->make_stream();
  EXPECT_DEATH(ops::sample(*stream, {.logits = {nullptr, 0, 8, 8}}), "sample: this device does not have the op");
}

}  // namespace
}  // namespace deepinfer
