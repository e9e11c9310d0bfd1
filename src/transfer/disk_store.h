// DiskStore: blocks and units in append-only segment files (segment_format.h), in a folder of its own for each model
// and layout. Whole segments go when the bound is reached, oldest first. Used by one thread at a time.
//
// It never gives wrong bytes and never an error that could reach a request: what is damaged, lost or refused by the
// system is counted and "not there". A unit is written after all its blocks are durable, so whatever moment the process
// or the machine dies, a unit that is found is whole. The index in memory comes from the files and only tells where to
// look.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "cache/content_key.h"
#include "transfer/segment_format.h"

namespace deepinfer {

struct DiskStoreOptions {
  std::string directory;  // made if it is missing; a folder named by the fingerprint is made in it
  ContentKey fingerprint;
  int64_t max_bytes = int64_t{16} << 30;
  int64_t segment_bytes = int64_t{256} << 20;  // at most a quarter of max_bytes is used
  // For tests of what a system can do to a write; takes the arguments of pwritev.
  std::function<ssize_t(int file, const iovec* parts, int num_parts, int64_t offset)> write = {};
};

struct DiskStoreCounters {
  int64_t bytes = 0;  // in files now
  int64_t segments = 0;
  int64_t units = 0;
  int64_t segments_evicted = 0;
  int64_t write_failures = 0;
  int64_t read_failures = 0;     // of the system
  int64_t damaged_records = 0;   // found at opening or when read
  int64_t incomplete_units = 0;  // found at opening without all their blocks
};

class DiskStore {
 public:
  // Always a store. If the folder cannot be used (status), it has nothing and takes nothing.
  static std::unique_ptr<DiskStore> open(const DiskStoreOptions& options);
  ~DiskStore();
  DiskStore(const DiskStore&) = delete;
  DiskStore& operator=(const DiskStore&) = delete;

  const Status& status() const { return status_; }

  // Every unit found at opening, oldest first; gives them away.
  std::vector<UnitRecord> take_units() { return std::exchange(found_units_, {}); }

  bool has_block(const ContentKey& key) const { return blocks_.contains(key); }
  // True if the block is stored now (or was already).
  bool put_block(const ContentKey& key, uint32_t group, std::span<const std::byte> bytes);
  // True if the unit is stored now (or was already). False if one of its blocks is missing.
  bool put_unit(const ContentKey& key, uint64_t salt, std::span<const int32_t> tokens,
                std::span<const UnitRecord::Block> blocks);

  // Whether the unit is there, and of these very tokens. Reads its record.
  bool has_unit(const ContentKey& key, uint64_t salt, std::span<const int32_t> tokens);
  // Asks the system to read the block ahead.
  void prefetch(const ContentKey& key) const;
  // False, with anything in `out`, unless the block is there and sound and of this group and size.
  bool get_block(const ContentKey& key, uint32_t group, std::span<std::byte> out);
  void drop_unit(const ContentKey& key);

  // Units that went since the last call.
  std::vector<ContentKey> take_gone() { return std::exchange(gone_, {}); }
  // Everything written is on the disk.
  bool sync();
  const DiskStoreCounters& counters() const { return counters_; }

 private:
  struct Segment {
    int file = -1;
    int64_t bytes = 0;
    int64_t sound_end = 0;           // as found at opening
    std::vector<ContentKey> blocks;  // whose latest record may be here
    std::vector<ContentKey> units;   // that need a record of this segment
  };
  struct Place {
    int64_t segment = 0;
    int64_t offset = 0;
    int64_t payload_bytes = 0;
    uint32_t group = 0;
  };

  explicit DiskStore(const DiskStoreOptions& options);
  Status open_folder();
  Status open_segments();
  void scan(int64_t id, Segment& segment);
  void keep_complete_units();
  void depend(const ContentKey& unit, std::span<const UnitRecord::Block> blocks, int64_t own_segment);

  bool append(RecordKind kind, uint32_t group, const ContentKey& key, std::span<const std::byte> payload, Place& place);
  bool write_record(Segment& segment, const HeaderBytes& header, std::span<const std::byte> payload, int* error);
  bool start_segment();
  bool make_room(int64_t bytes);
  bool evict_oldest();
  bool read_record(const ContentKey& key, const Place& place, RecordKind kind, std::span<std::byte> payload);
  std::string path_of(int64_t segment) const;

  DiskStoreOptions options_;
  std::string folder_;
  Status status_;
  int folder_file_ = -1;
  int lock_file_ = -1;
  std::map<int64_t, Segment> segments_;  // by age
  int64_t active_ = -1;                  // the segment that grows; -1: none
  bool is_dirty_ = false;                // blocks were written since the last sync
  std::unordered_map<ContentKey, Place, ContentKeyHash> blocks_, units_;
  std::vector<std::pair<ContentKey, UnitRecord>> scanned_units_;
  std::vector<UnitRecord> found_units_;
  std::vector<ContentKey> gone_;
  DiskStoreCounters counters_;
};

}  // namespace deepinfer
