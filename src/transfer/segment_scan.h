// Walks the records of a segment by their headers. What is damaged is passed over: the walk goes on at the next
// multiple of 4 KiB where a sound header stands.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "transfer/segment_format.h"

namespace deepinfer {

// Reads up to buffer.size() bytes at the offset; returns how many there were, 0 at the end or on an error.
using ReadAt = std::function<int64_t(int64_t offset, std::span<std::byte> buffer)>;

struct SegmentScan {
  int64_t num_records = 0;
  int64_t num_gaps = 0;   // places where something else than a record stood
  int64_t sound_end = 0;  // where the last whole record ends
};

// Calls on_record(header, offset) for each record that lies in the segment's `size` bytes completely. Payloads are not
// read, so they may still be wrong.
SegmentScan scan_segment(const ReadAt& read, int64_t size, const ContentKey& fingerprint,
                         const std::function<void(const RecordHeader&, int64_t offset)>& on_record);

}  // namespace deepinfer
