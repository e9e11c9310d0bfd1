// Any bytes as a segment file, as a unit record, and as damage to a sound segment: the walk stays inside the file and
// ends, and whatever passes its checksum is what was written.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <vector>

#include "base/check.h"
#include "transfer/segment_format.h"
#include "transfer/segment_scan.h"

namespace {

using namespace deepinfer;

constexpr ContentKey kFingerprint{1, 2};

// Records of `bytes` that pass every check.
std::map<uint64_t, std::vector<std::byte>> sound_records(std::span<const std::byte> bytes) {
  std::map<uint64_t, std::vector<std::byte>> sound;
  const auto size = static_cast<int64_t>(bytes.size());
  const ReadAt read = [&](int64_t offset, std::span<std::byte> buffer) -> int64_t {
    DI_CHECK(offset >= 0 && offset < size, "read at {} of {}", offset, size);
    const auto count = std::min(static_cast<int64_t>(buffer.size()), size - offset);
    std::memcpy(buffer.data(), bytes.data() + offset, count);
    return count;
  };
  int64_t last = -1;
  scan_segment(read, size, kFingerprint, [&](const RecordHeader& header, int64_t offset) {
    DI_CHECK(offset > last && offset % kRecordAlignment == 0, "a record at {} after {}", offset, last);
    DI_CHECK(header.payload_bytes >= 0 && offset + kHeaderBytes + header.payload_bytes <= size, "{} bytes at {} of {}",
             header.payload_bytes, offset, size);
    last = offset;
    const auto payload = bytes.subspan(offset + kHeaderBytes, header.payload_bytes);
    if (checksum_fits(header, kFingerprint, payload)) sound[header.key.low].assign(payload.begin(), payload.end());
  });
  return sound;
}

void read_unit(std::span<const std::byte> bytes) {
  const auto unit = decode_unit(bytes);
  if (!unit) return;
  const auto again = encode_unit(unit->salt, unit->tokens, unit->blocks);
  DI_CHECK(std::ranges::equal(again, bytes), "a unit of {} bytes has two spellings", bytes.size());
}

// The first half of the input is cut into payloads of a sound segment; the second half says what is damaged: triples of
// where (two bytes) and what.
void damage_segment(std::span<const std::byte> input) {
  const auto content = input.first(input.size() / 2);
  const auto damage = input.subspan(input.size() / 2);
  std::vector<std::byte> segment;
  std::map<uint64_t, std::vector<std::byte>> written;
  for (size_t begin = 0; begin < content.size() && written.size() < 8;) {
    const auto size = std::min<size_t>(static_cast<size_t>(content[begin]) * 40, content.size() - begin);
    const auto payload = content.subspan(begin, size);
    const ContentKey key{7, written.size()};
    const auto kind = written.size() % 2 == 0 ? RecordKind::kBlock : RecordKind::kUnit;
    const auto header = encode_header(make_header(kind, 0, key, kFingerprint, payload), kFingerprint);
    const size_t start = segment.size();
    segment.insert(segment.end(), header.begin(), header.end());
    segment.insert(segment.end(), payload.begin(), payload.end());
    segment.resize(start + record_stride(static_cast<int64_t>(size)));
    written[key.low].assign(payload.begin(), payload.end());
    begin += size + 1;
  }
  DI_CHECK(sound_records(segment) == written, "a sound segment is not read as it was written");
  for (size_t i = 0; i + 2 < damage.size() && !segment.empty(); i += 3) {
    const auto at = static_cast<size_t>(damage[i]) << 8 | static_cast<size_t>(damage[i + 1]);
    segment[at % segment.size()] ^= damage[i + 2];
  }
  if (damage.size() % 3 == 2)
    segment.resize(segment.size() - segment.size() * static_cast<size_t>(damage.back()) / 256);
  for (const auto& [number, payload] : sound_records(segment))
    DI_CHECK(written.at(number) == payload, "damage to record {} went unnoticed", number);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  sound_records(bytes);
  read_unit(bytes);
  damage_segment(bytes);
  return 0;
}
