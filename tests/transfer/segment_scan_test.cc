#include "transfer/segment_scan.h"

#include <cstring>

#include <gtest/gtest.h>

#include "transfer/store_rig.h"

namespace deepinfer {
namespace {

constexpr ContentKey kFingerprint{11, 22};

class SegmentBytes {
 public:
  void add(uint64_t number, uint32_t group) {
    const auto payload = test_bytes(test_key(number), group);
    const HeaderBytes header =
        encode_header(make_header(RecordKind::kBlock, group, test_key(number), kFingerprint, payload), kFingerprint);
    offsets.push_back(static_cast<int64_t>(bytes.size()));
    bytes.insert(bytes.end(), header.begin(), header.end());
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    bytes.resize(offsets.back() + record_stride(static_cast<int64_t>(payload.size())));
  }
  // The offsets of the records found.
  std::vector<int64_t> scan() {
    std::vector<int64_t> found;
    const ReadAt read = [&](int64_t offset, std::span<std::byte> buffer) -> int64_t {
      const auto count = std::min<int64_t>(buffer.size(), static_cast<int64_t>(bytes.size()) - offset);
      std::memcpy(buffer.data(), bytes.data() + offset, count);
      return count;
    };
    last = scan_segment(read, static_cast<int64_t>(bytes.size()), kFingerprint,
                        [&](const RecordHeader&, int64_t offset) { found.push_back(offset); });
    return found;
  }

  std::vector<std::byte> bytes;
  std::vector<int64_t> offsets;
  SegmentScan last;
};

TEST(SegmentScan, FindsEveryRecord) {
  SegmentBytes segment;
  for (uint64_t i = 0; i < 6; ++i) segment.add(i, i % 2);
  EXPECT_EQ(segment.scan(), segment.offsets);
  EXPECT_EQ(segment.last.num_gaps, 0);
  EXPECT_EQ(segment.last.sound_end, static_cast<int64_t>(segment.bytes.size()));
}

TEST(SegmentScan, GoesOnAfterADamagedHeader) {
  SegmentBytes segment;
  for (uint64_t i = 0; i < 4; ++i) segment.add(i, 0);
  segment.bytes[segment.offsets[1] + 20] ^= std::byte{1};
  EXPECT_EQ(segment.scan(), (std::vector{segment.offsets[0], segment.offsets[2], segment.offsets[3]}));
  EXPECT_EQ(segment.last.num_gaps, 1);
}

TEST(SegmentScan, LeavesOutARecordThatWasCutAnywhere) {
  SegmentBytes whole;
  whole.add(0, 0);
  whole.add(1, 1);
  const int64_t data_end = whole.offsets[1] + kHeaderBytes + test_block_bytes(1);
  for (int64_t size = whole.offsets[1] + 1; size < static_cast<int64_t>(whole.bytes.size()); ++size) {
    SegmentBytes cut = whole;
    cut.bytes.resize(size);
    EXPECT_EQ(cut.scan().size(), size >= data_end ? 2u : 1u) << size;
    EXPECT_EQ(cut.last.sound_end, size >= data_end ? static_cast<int64_t>(whole.bytes.size()) : whole.offsets[1]);
  }
}

TEST(SegmentScan, AnEmptySegmentAndGarbageHaveNothing) {
  SegmentBytes segment;
  EXPECT_TRUE(segment.scan().empty());
  segment.bytes.assign(50000, std::byte{0x5A});
  EXPECT_TRUE(segment.scan().empty());
  EXPECT_EQ(segment.last.num_gaps, 1);
  EXPECT_EQ(segment.last.sound_end, 0);
}

}  // namespace
}  // namespace deepinfer
