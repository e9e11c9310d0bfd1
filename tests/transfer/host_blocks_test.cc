#include "transfer/host_blocks.h"

#include <algorithm>
#include <limits>

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

CacheLayout layout(int64_t block_bytes) {
  return {{{.name = "a", .tokens_per_block = 4, .block_bytes = block_bytes},
           {.name = "b", .tokens_per_block = 4, .block_bytes = 24}}};
}

TEST(HostBlocks, BlocksAreApartAndBeginAsZeros) {
  const auto blocks = HostBlocks::allocate(layout(100), {3, 5});
  ASSERT_TRUE(blocks.ok());
  const auto first = (*blocks)->block(0, 0), second = (*blocks)->block(0, 1);
  EXPECT_EQ(first.size(), 100u);
  EXPECT_EQ((*blocks)->block(1, 4).size(), 24u);
  std::fill(first.begin(), first.end(), std::byte{7});
  EXPECT_TRUE(std::all_of(second.begin(), second.end(), [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST(HostBlocks, MemoryThatTheSystemDoesNotHaveIsAnErrorThatNamesTheSize) {
  const auto blocks = HostBlocks::allocate(layout(int64_t{1} << 50), {16, 1});
  ASSERT_FALSE(blocks.ok());
  EXPECT_EQ(blocks.status().code(), ErrorCode::kOutOfMemory);
  EXPECT_NE(blocks.status().message().find("18014398509481984 bytes"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer
