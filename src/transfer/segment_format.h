// The bytes of a segment file of the disk tier: records one after another, each at a multiple of 4 KiB.
//
//   record   = header (64 bytes), payload, zeros up to the next multiple of 4 KiB
//   header   = magic u32 | version u16 | kind u8 | 0 u8 | group u32 | header check u32 | key 2 x u64 | payload bytes
//   u64
//              | checksum u64 | fingerprint 2 x u64                                    (little endian)
//   block    : the payload is the block's bytes
//   unit     : salt u64 | number of tokens u64 | number of blocks u64 | tokens i32... | blocks (group u32, 0 u32,
//   key)...
//
// The checksum (XXH3, 64 bits) covers header and payload; the header check covers the header, so that files can be
// walked without reading payloads. The fingerprint names model and layout. Nothing in a file is believed without its
// check.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cache/content_key.h"

namespace deepinfer {

inline constexpr int64_t kRecordAlignment = 4096;
inline constexpr int64_t kHeaderBytes = 64;
inline constexpr int64_t kMaxPayloadBytes = int64_t{1} << 30;

enum class RecordKind : uint8_t { kBlock = 1, kUnit = 2 };

struct RecordHeader {
  RecordKind kind = RecordKind::kBlock;
  uint32_t group = 0;  // of a block
  ContentKey key;
  int64_t payload_bytes = 0;
  uint64_t checksum = 0;
  bool operator==(const RecordHeader&) const = default;
};

using HeaderBytes = std::array<std::byte, kHeaderBytes>;

// Bytes from one record's start to the next one's.
inline int64_t record_stride(int64_t payload_bytes) {
  return (kHeaderBytes + payload_bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
}

// The header of a record with this payload, checksum included.
RecordHeader make_header(RecordKind kind, uint32_t group, const ContentKey& key, const ContentKey& fingerprint,
                         std::span<const std::byte> payload);
HeaderBytes encode_header(const RecordHeader& header, const ContentKey& fingerprint);
// Nothing if it is no header of this version and fingerprint.
std::optional<RecordHeader> decode_header(std::span<const std::byte> bytes, const ContentKey& fingerprint);
bool checksum_fits(const RecordHeader& header, const ContentKey& fingerprint, std::span<const std::byte> payload);

struct UnitRecord {
  struct Block {
    uint32_t group = 0;
    ContentKey key;
    bool operator==(const Block&) const = default;
  };
  uint64_t salt = 0;
  std::vector<int32_t> tokens;
  std::vector<Block> blocks;
  bool operator==(const UnitRecord&) const = default;
};

std::vector<std::byte> encode_unit(uint64_t salt, std::span<const int32_t> tokens,
                                   std::span<const UnitRecord::Block> blocks);
std::optional<UnitRecord> decode_unit(std::span<const std::byte> payload);

}  // namespace deepinfer
