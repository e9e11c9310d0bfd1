#include "model/kv_layout.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

// What the layout depends on, at the released size.
ModelConfig released() {
  ModelConfig config;
  config.num_hidden_layers = 40;
  config.head_dim = 512;
  config.index_head_dim = 128;
  config.sliding_window = 128;
  config.compress_ratios.assign(40, 1);
  for (int l = 0; l < 20; ++l) config.compress_ratios[l] = l < 2 ? 0 : 2;
  config.kv_source_layer_ids = {2, 8, 14, 20};
  config.index_source_layer_ids = {2, 8, 14, 20, 24, 28, 32, 36};
  config.candidate_source_layer_id = 20;
  return config;
}

KvLayout layout_of(KvFormat format) { return KvLayout::make(released(), Numerics::kOfficial, format); }

TEST(KvLayout, ATokenOfTheReleasedModelCostsTheDocumentedBytes) {
  EXPECT_EQ(layout_of(KvFormat::kBf16).bytes_per_token(), 3200);
  EXPECT_EQ(layout_of(KvFormat::kFp8).bytes_per_token(), 1650);
  EXPECT_EQ(layout_of(KvFormat::kFp4).bytes_per_token(), 890);
  EXPECT_EQ(KvLayout::make(released(), Numerics::kExact).bytes_per_token(), 6400);
}

TEST(KvLayout, ASequenceOfAnyLengthHoldsNoMoreThanSaidAndOnceAsMuch) {
  const KvLayout layout = layout_of(KvFormat::kBf16);
  int64_t most = 0;
  for (int64_t length = 1; length < 1000; ++length) {
    int64_t bytes = 0;
    for (const CacheGroup& group : layout.cache.groups) {
      if (group.retention == CacheGroup::kKeepAll) continue;
      const int64_t oldest = std::max<int64_t>(0, length - group.retention);
      bytes += ((length - 1) / group.tokens_per_block - oldest / group.tokens_per_block + 1) * group.block_bytes;
    }
    most = std::max(most, bytes);
  }
  EXPECT_EQ(layout.bytes_per_sequence(), most);
}

TEST(KvLayout, PackedWindowsAreHalfAsLarge) {
  const auto window = [](KvFormat format) { return layout_of(format).cache.groups[0].block_bytes; };
  EXPECT_EQ(window(KvFormat::kBf16), 40 * 64 * 1024);
  EXPECT_EQ(window(KvFormat::kFp8), 40 * 64 * 528);
  EXPECT_EQ(window(KvFormat::kFp4), 40 * 64 * 528);
}

TEST(KvLayout, RowsOfAGroupFollowEachOtherWithoutGapsAndBeginOnCacheLines) {
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kFp8, KvFormat::kFp4}) {
    const KvLayout layout = layout_of(format);
    std::vector<int64_t> end(layout.cache.groups.size(), 0);
    for (const KvLayout::Member& member : layout.members) {
      EXPECT_EQ(member.offset, end[member.group]);
      EXPECT_EQ(member.offset % 64, 0);
      end[member.group] += ops::row_bytes(member.type, member.width) << member.block_shift;
    }
    for (size_t g = 0; g < end.size(); ++g) EXPECT_EQ(layout.cache.groups[g].block_bytes, end[g]);
  }
}

TEST(KvLayout, EachKindOfRowIsStoredAsItsQuantiserMadeIt) {
  const KvLayout fp4 = layout_of(KvFormat::kFp4), fp8 = layout_of(KvFormat::kFp8);
  const auto type = [](const KvLayout& layout, const std::vector<int>& kind) { return layout.members[kind[2]].type; };
  EXPECT_EQ(type(fp4, fp4.window), ops::RowType::kE4m3Group32);
  EXPECT_EQ(type(fp4, fp4.compressed), ops::RowType::kE2m1Group16);
  EXPECT_EQ(type(fp4, fp4.index_keys), ops::RowType::kE2m1Group32);
  EXPECT_EQ(type(fp4, fp4.open_group), ops::RowType::kF32);
  EXPECT_EQ(type(fp8, fp8.window), ops::RowType::kE4m3Group32);
  EXPECT_EQ(type(fp8, fp8.compressed), ops::RowType::kE4m3Group32);
  EXPECT_EQ(type(fp8, fp8.index_keys), ops::RowType::kE4m3Group32);
  EXPECT_EQ(type(fp8, fp8.open_group), ops::RowType::kF32);
}

TEST(KvFormat, ExactNumericsRefusePackedRowsByName) {
  for (const KvFormat format : {KvFormat::kFp8, KvFormat::kFp4}) {
    const Status status = check_kv_format(format, Numerics::kExact);
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.message().find(name_of(format)), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("exact"), std::string::npos) << status.message();
    EXPECT_TRUE(check_kv_format(format, Numerics::kOfficial).ok());
    EXPECT_TRUE(check_kv_format(format, Numerics::kBf16Activations).ok());
  }
  EXPECT_TRUE(check_kv_format(KvFormat::kBf16, Numerics::kExact).ok());
}

TEST(KvFormat, NamesReadBack) {
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kFp8, KvFormat::kFp4}) {
    EXPECT_EQ(kv_format_from_name(name_of(format)), format);
  }
  EXPECT_FALSE(kv_format_from_name("fp16"));
}

}  // namespace
}  // namespace deepinfer
