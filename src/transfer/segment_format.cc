#include "transfer/segment_format.h"

#include <bit>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace deepinfer {

namespace {

static_assert(std::endian::native == std::endian::little, "segment files are little endian");

constexpr uint32_t kMagic = 0x564B4944;  // "DIKV"
constexpr uint16_t kVersion = 1;
constexpr size_t kCheckOffset = 12;

template <typename T>
void put(std::byte*& at, const T& value) {
  std::memcpy(at, &value, sizeof(value));
  at += sizeof(value);
}

template <typename T>
T get(const std::byte*& at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  at += sizeof(value);
  return value;
}

uint64_t payload_checksum(const RecordHeader& header, const ContentKey& fingerprint,
                          std::span<const std::byte> payload) {
  const uint64_t fields[] = {kMagic,         kVersion,         static_cast<uint64_t>(header.kind),
                             header.group,   header.key.high,  header.key.low,
                             payload.size(), fingerprint.high, fingerprint.low};
  return XXH3_64bits_withSeed(payload.data(), payload.size(), XXH3_64bits(fields, sizeof(fields)));
}

uint32_t header_check(HeaderBytes bytes) {
  std::memset(bytes.data() + kCheckOffset, 0, sizeof(uint32_t));
  return static_cast<uint32_t>(XXH3_64bits(bytes.data(), bytes.size()));
}

}  // namespace

RecordHeader make_header(RecordKind kind, uint32_t group, const ContentKey& key, const ContentKey& fingerprint,
                         std::span<const std::byte> payload) {
  RecordHeader header{kind, group, key, static_cast<int64_t>(payload.size()), 0};
  header.checksum = payload_checksum(header, fingerprint, payload);
  return header;
}

HeaderBytes encode_header(const RecordHeader& header, const ContentKey& fingerprint) {
  HeaderBytes bytes{};
  std::byte* at = bytes.data();
  put(at, kMagic);
  put(at, kVersion);
  put(at, static_cast<uint8_t>(header.kind));
  put(at, uint8_t{0});
  put(at, header.group);
  put(at, uint32_t{0});
  put(at, header.key.high);
  put(at, header.key.low);
  put(at, header.payload_bytes);
  put(at, header.checksum);
  put(at, fingerprint.high);
  put(at, fingerprint.low);
  const uint32_t check = header_check(bytes);
  std::memcpy(bytes.data() + kCheckOffset, &check, sizeof(check));
  return bytes;
}

std::optional<RecordHeader> decode_header(std::span<const std::byte> bytes, const ContentKey& fingerprint) {
  if (static_cast<int64_t>(bytes.size()) < kHeaderBytes) return std::nullopt;
  HeaderBytes copy;
  std::memcpy(copy.data(), bytes.data(), copy.size());
  const std::byte* at = copy.data();
  if (get<uint32_t>(at) != kMagic || get<uint16_t>(at) != kVersion) return std::nullopt;
  RecordHeader header;
  header.kind = static_cast<RecordKind>(get<uint8_t>(at));
  at += 1;
  header.group = get<uint32_t>(at);
  if (get<uint32_t>(at) != header_check(copy)) return std::nullopt;
  header.key.high = get<uint64_t>(at);
  header.key.low = get<uint64_t>(at);
  header.payload_bytes = get<int64_t>(at);
  header.checksum = get<uint64_t>(at);
  ContentKey found;
  found.high = get<uint64_t>(at);
  found.low = get<uint64_t>(at);
  if (header.kind != RecordKind::kBlock && header.kind != RecordKind::kUnit) return std::nullopt;
  if (header.payload_bytes < 0 || header.payload_bytes > kMaxPayloadBytes || !(found == fingerprint))
    return std::nullopt;
  return header;
}

bool checksum_fits(const RecordHeader& header, const ContentKey& fingerprint, std::span<const std::byte> payload) {
  return header.payload_bytes == static_cast<int64_t>(payload.size()) &&
         header.checksum == payload_checksum(header, fingerprint, payload);
}

namespace {

constexpr uint64_t kUnitHeadBytes = 24;
constexpr uint64_t kUnitBlockBytes = 24;

}  // namespace

std::vector<std::byte> encode_unit(uint64_t salt, std::span<const int32_t> tokens,
                                   std::span<const UnitRecord::Block> blocks) {
  std::vector<std::byte> payload(kUnitHeadBytes + tokens.size_bytes() + blocks.size() * kUnitBlockBytes);
  std::byte* at = payload.data();
  put(at, salt);
  put(at, uint64_t{tokens.size()});
  put(at, uint64_t{blocks.size()});
  std::memcpy(at, tokens.data(), tokens.size_bytes());
  at += tokens.size_bytes();
  for (const UnitRecord::Block& block : blocks) {
    put(at, block.group);
    put(at, uint32_t{0});
    put(at, block.key.high);
    put(at, block.key.low);
  }
  return payload;
}

std::optional<UnitRecord> decode_unit(std::span<const std::byte> payload) {
  if (payload.size() < kUnitHeadBytes) return std::nullopt;
  const std::byte* at = payload.data();
  UnitRecord unit;
  unit.salt = get<uint64_t>(at);
  const auto num_tokens = get<uint64_t>(at);
  const auto num_blocks = get<uint64_t>(at);
  // Each bounded by itself, so that their sum cannot wrap.
  if (num_tokens == 0 || num_tokens > payload.size() / sizeof(int32_t)) return std::nullopt;
  if (num_blocks > payload.size() / kUnitBlockBytes) return std::nullopt;
  if (kUnitHeadBytes + num_tokens * sizeof(int32_t) + num_blocks * kUnitBlockBytes != payload.size())
    return std::nullopt;
  unit.tokens.resize(num_tokens);
  std::memcpy(unit.tokens.data(), at, num_tokens * sizeof(int32_t));
  at += num_tokens * sizeof(int32_t);
  unit.blocks.resize(num_blocks);
  for (UnitRecord::Block& block : unit.blocks) {
    block.group = get<uint32_t>(at);
    if (get<uint32_t>(at) != 0) return std::nullopt;
    block.key.high = get<uint64_t>(at);
    block.key.low = get<uint64_t>(at);
  }
  return unit;
}

}  // namespace deepinfer
