#include "transfer/segment_format.h"

#include <gtest/gtest.h>

#include "transfer/store_rig.h"

namespace deepinfer {
namespace {

constexpr ContentKey kFingerprint{11, 22};

TEST(SegmentFormat, AHeaderComesBackAsItWas) {
  const auto bytes = test_bytes(test_key(1), 0);
  const RecordHeader header = make_header(RecordKind::kBlock, 3, test_key(1), kFingerprint, bytes);
  const auto decoded = decode_header(encode_header(header, kFingerprint), kFingerprint);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(*decoded, header);
  EXPECT_TRUE(checksum_fits(*decoded, kFingerprint, bytes));
}

TEST(SegmentFormat, EveryFlippedBitOfAHeaderIsNoticed) {
  const HeaderBytes good =
      encode_header(make_header(RecordKind::kUnit, 0, test_key(1), kFingerprint, {}), kFingerprint);
  for (int bit = 0; bit < kHeaderBytes * 8; ++bit) {
    HeaderBytes bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_FALSE(decode_header(bad, kFingerprint)) << bit;
  }
}

TEST(SegmentFormat, EveryFlippedBitOfAPayloadIsNoticed) {
  auto bytes = test_bytes(test_key(1), 1);
  const RecordHeader header = make_header(RecordKind::kBlock, 1, test_key(1), kFingerprint, bytes);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_FALSE(checksum_fits(header, kFingerprint, bytes)) << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
  }
}

TEST(SegmentFormat, AChecksumBelongsToItsKeyGroupAndKind) {
  const auto bytes = test_bytes(test_key(1), 1);
  const RecordHeader header = make_header(RecordKind::kBlock, 1, test_key(1), kFingerprint, bytes);
  RecordHeader other = header;
  other.key = test_key(2);
  EXPECT_FALSE(checksum_fits(other, kFingerprint, bytes));
  other = header;
  other.group = 2;
  EXPECT_FALSE(checksum_fits(other, kFingerprint, bytes));
  other = header;
  other.kind = RecordKind::kUnit;
  EXPECT_FALSE(checksum_fits(other, kFingerprint, bytes));
  EXPECT_FALSE(checksum_fits(header, {11, 23}, bytes));
}

TEST(SegmentFormat, AnotherModelsRecordIsNoRecord) {
  const HeaderBytes bytes = encode_header(make_header(RecordKind::kBlock, 0, {}, kFingerprint, {}), kFingerprint);
  EXPECT_FALSE(decode_header(bytes, {11, 23}));
}

TEST(SegmentFormat, AUnitComesBackAsItWas) {
  const UnitRecord unit = test_unit(7).record;
  EXPECT_EQ(decode_unit(encode_unit(unit.salt, unit.tokens, unit.blocks)), unit);
}

TEST(SegmentFormat, AUnitThatIsTooShortTooLongOrHasHugeCountsIsRefused) {
  const UnitRecord unit = test_unit(7).record;
  auto bytes = encode_unit(unit.salt, unit.tokens, unit.blocks);
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(decode_unit(std::span(bytes).first(size)));
  bytes.push_back({});
  EXPECT_FALSE(decode_unit(bytes));
  bytes.pop_back();
  for (const size_t count_at : {size_t{8}, size_t{16}}) {
    auto bad = bytes;
    for (size_t i = 0; i < 8; ++i) bad[count_at + i] = std::byte{0xFF};
    EXPECT_FALSE(decode_unit(bad));
  }
}

}  // namespace
}  // namespace deepinfer
