#include "transfer/segment_scan.h"

#include <algorithm>

namespace deepinfer {

SegmentScan scan_segment(const ReadAt& read, int64_t size, const ContentKey& fingerprint,
                         const std::function<void(const RecordHeader&, int64_t offset)>& on_record) {
  SegmentScan scan;
  bool is_in_gap = false;
  int64_t offset = 0;
  while (offset < size) {
    HeaderBytes bytes{};
    std::optional<RecordHeader> header;
    if (read(offset, bytes) == kHeaderBytes) header = decode_header(bytes, fingerprint);
    if (header && offset + kHeaderBytes + header->payload_bytes <= size) {
      on_record(*header, offset);
      ++scan.num_records;
      offset += record_stride(header->payload_bytes);
      scan.sound_end = offset;
      is_in_gap = false;
    } else {
      scan.num_gaps += !is_in_gap;
      is_in_gap = true;
      offset += kRecordAlignment;
    }
  }
  return scan;
}

}  // namespace deepinfer
