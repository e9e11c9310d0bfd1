#include "transfer/disk_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <utility>

#include "transfer/segment_scan.h"

namespace deepinfer {

namespace {

constexpr std::string_view kSegmentPrefix = "segment-";

// Reads exactly `parts`; false at the end of the file or on an error.
bool read_fully(int file, std::span<iovec> parts, int64_t offset) {
  while (!parts.empty()) {
    const ssize_t count = ::preadv(file, parts.data(), static_cast<int>(parts.size()), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    offset += count;
    auto left = static_cast<size_t>(count);
    while (!parts.empty() && left >= parts[0].iov_len) {
      left -= parts[0].iov_len;
      parts = parts.subspan(1);
    }
    if (!parts.empty()) {
      parts[0].iov_base = static_cast<std::byte*>(parts[0].iov_base) + left;
      parts[0].iov_len -= left;
    }
  }
  return true;
}

iovec part(std::span<const std::byte> bytes) { return {const_cast<std::byte*>(bytes.data()), bytes.size()}; }

}  // namespace

DiskStore::DiskStore(const DiskStoreOptions& options) : options_(options) {
  if (!options_.write)
    options_.write = [](int file, const iovec* parts, int num_parts, int64_t offset) {
      return ::pwritev(file, parts, num_parts, offset);
    };
  options_.segment_bytes = std::max<int64_t>(1, std::min(options_.segment_bytes, options_.max_bytes / 4));
}

std::unique_ptr<DiskStore> DiskStore::open(const DiskStoreOptions& options) {
  std::unique_ptr<DiskStore> store(new DiskStore(options));
  store->status_ = store->open_folder();
  if (store->status_.ok()) store->status_ = store->open_segments();
  if (!store->status_.ok()) ++store->counters_.read_failures;
  return store;
}

DiskStore::~DiskStore() {
  if (status_.ok()) sync();
  for (auto& [id, segment] : segments_) ::close(segment.file);
  if (lock_file_ >= 0) ::close(lock_file_);
  if (folder_file_ >= 0) ::close(folder_file_);
}

std::string DiskStore::path_of(int64_t segment) const {
  return fmt::format("{}/{}{:012d}", folder_, kSegmentPrefix, segment);
}

Status DiskStore::open_folder() {
  folder_ = options_.directory + "/" + options_.fingerprint.hex();
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error)
    return io_error("the folder \"{}\" of the disk cache: {}; name a folder that can be written", folder_,
                    error.message());
  folder_file_ = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_file_ < 0) return io_error("the folder \"{}\" of the disk cache: {}", folder_, std::strerror(errno));
  const std::string lock = folder_ + "/lock";
  lock_file_ = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_file_ < 0) return io_error("\"{}\": {}; name a folder that can be written", lock, std::strerror(errno));
  if (::flock(lock_file_, LOCK_EX | LOCK_NB) != 0)
    return io_error("the folder \"{}\" of the disk cache: {}; another process uses it: give each its own", folder_,
                    std::strerror(errno));
  return {};
}

Status DiskStore::open_segments() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kSegmentPrefix)) continue;
    int64_t id = -1;
    const char* const end = name.data() + name.size();
    if (std::from_chars(name.data() + kSegmentPrefix.size(), end, id).ptr != end || id < 0) continue;
    const int file = ::open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
    struct stat info {};
    if (file < 0 || ::fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) {
      ++counters_.read_failures;
      if (file >= 0) ::close(file);
      continue;
    }
    segments_[id] = {.file = file, .bytes = info.st_size};
  }
  if (error) return io_error("the folder \"{}\" of the disk cache: {}", folder_, error.message());
  for (auto& [id, segment] : segments_) scan(id, segment);
  counters_.segments = static_cast<int64_t>(segments_.size());
  keep_complete_units();
  // A short segment goes on growing, or each start would leave one behind. What follows its last sound record is cut
  // off (and the zeros after that, if they were lost, are put back).
  if (!segments_.empty()) {
    auto& [id, last] = *segments_.rbegin();
    if (last.sound_end < options_.segment_bytes / 2 && ::ftruncate(last.file, last.sound_end) == 0) {
      counters_.bytes += last.sound_end - last.bytes;
      last.bytes = last.sound_end;
      active_ = id;
    }
  }
  make_room(0);
  return {};
}

void DiskStore::scan(int64_t id, Segment& segment) {
  const ReadAt read = [&](int64_t offset, std::span<std::byte> buffer) -> int64_t {
    iovec parts[] = {part(buffer)};
    return read_fully(segment.file, parts, offset) ? static_cast<int64_t>(buffer.size()) : 0;
  };
  const SegmentScan scan =
      scan_segment(read, segment.bytes, options_.fingerprint, [&](const RecordHeader& header, int64_t offset) {
        const Place place{id, offset, header.payload_bytes, header.group};
        if (header.kind == RecordKind::kBlock) {
          blocks_[header.key] = place;
          segment.blocks.push_back(header.key);
          return;
        }
        std::vector<std::byte> payload(header.payload_bytes);
        std::optional<UnitRecord> unit;
        if (read_record(header.key, place, RecordKind::kUnit, payload)) unit = decode_unit(payload);
        if (!unit) return;
        units_[header.key] = place;
        scanned_units_.emplace_back(header.key, *std::move(unit));
      });
  counters_.damaged_records += scan.num_gaps;
  segment.sound_end = scan.sound_end;
  counters_.bytes += segment.bytes;
}

void DiskStore::keep_complete_units() {
  for (auto& [key, unit] : scanned_units_) {
    const bool is_whole = std::all_of(unit.blocks.begin(), unit.blocks.end(),
                                      [&](const UnitRecord::Block& block) { return has_block(block.key); });
    const auto place = units_.find(key);
    if (place == units_.end()) continue;
    if (!is_whole) {
      ++counters_.incomplete_units;
      units_.erase(place);
      continue;
    }
    depend(key, unit.blocks, place->second.segment);
    found_units_.push_back(std::move(unit));
  }
  scanned_units_ = {};
  counters_.units = static_cast<int64_t>(units_.size());
}

void DiskStore::depend(const ContentKey& unit, std::span<const UnitRecord::Block> blocks, int64_t own_segment) {
  int64_t last = -1;
  const auto add = [&](int64_t segment) {
    if (segment != last) segments_.at(segment).units.push_back(unit);
    last = segment;
  };
  for (const UnitRecord::Block& block : blocks) add(blocks_.at(block.key).segment);
  add(own_segment);
}

bool DiskStore::put_block(const ContentKey& key, uint32_t group, std::span<const std::byte> bytes) {
  if (has_block(key)) return true;
  Place place;
  if (!append(RecordKind::kBlock, group, key, bytes, place)) return false;
  blocks_[key] = place;
  segments_.at(place.segment).blocks.push_back(key);
  is_dirty_ = true;
  return true;
}

bool DiskStore::put_unit(const ContentKey& key, uint64_t salt, std::span<const int32_t> tokens,
                         std::span<const UnitRecord::Block> blocks) {
  const auto are_there = [&] {
    return std::all_of(blocks.begin(), blocks.end(), [&](const auto& block) { return has_block(block.key); });
  };
  if (!are_there()) return false;
  if (units_.contains(key)) return has_unit(key, salt, tokens);
  if (is_dirty_ && !sync()) return false;
  Place place;
  // Making room for the record may have cost one of the blocks.
  if (!append(RecordKind::kUnit, 0, key, encode_unit(salt, tokens, blocks), place) || !are_there()) return false;
  units_[key] = place;
  depend(key, blocks, place.segment);
  ++counters_.units;
  return true;
}

bool DiskStore::sync() {
  if (active_ < 0) return true;
  if (::fdatasync(segments_.at(active_).file) != 0) {
    // What of it reached the disk is unknown from now on: nothing more is added to this file.
    ++counters_.write_failures;
    active_ = -1;
    return false;
  }
  is_dirty_ = false;
  return true;
}

bool DiskStore::append(RecordKind kind, uint32_t group, const ContentKey& key, std::span<const std::byte> payload,
                       Place& place) {
  if (!status_.ok() || static_cast<int64_t>(payload.size()) > kMaxPayloadBytes) {
    ++counters_.write_failures;
    return false;
  }
  const HeaderBytes header =
      encode_header(make_header(kind, group, key, options_.fingerprint, payload), options_.fingerprint);
  const auto payload_bytes = static_cast<int64_t>(payload.size());
  // A full disk is like a reached bound: the oldest segment makes way, once.
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (!make_room(record_stride(payload_bytes))) break;
    if (active_ >= 0 && segments_.at(active_).bytes >= options_.segment_bytes) {
      if (is_dirty_ && !sync()) return false;
      active_ = -1;
    }
    if (active_ < 0 && !start_segment()) break;
    Segment& segment = segments_.at(active_);
    place = {active_, segment.bytes, payload_bytes, group};
    int error = 0;
    if (write_record(segment, header, payload, &error)) return true;
    if (error != ENOSPC || !evict_oldest()) break;
  }
  ++counters_.write_failures;
  return false;
}

bool DiskStore::write_record(Segment& segment, const HeaderBytes& header, std::span<const std::byte> payload,
                             int* error) {
  static constexpr std::byte kZeros[kRecordAlignment] = {};
  const int64_t stride = record_stride(static_cast<int64_t>(payload.size()));
  const auto padding = static_cast<size_t>(stride - kHeaderBytes) - payload.size();
  int64_t written = 0;
  while (written < stride) {
    iovec parts[3];
    int num_parts = 0;
    int64_t skip = written;
    for (const std::span<const std::byte> bytes :
         {std::span<const std::byte>(header), payload, std::span<const std::byte>(kZeros, padding)}) {
      const auto size = static_cast<int64_t>(bytes.size());
      if (skip < size) parts[num_parts++] = part(bytes.subspan(skip));
      skip = std::max<int64_t>(0, skip - size);
    }
    const ssize_t count = options_.write(segment.file, parts, num_parts, segment.bytes + written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      *error = count < 0 ? errno : ENOSPC;
      // A torn record must not stand before sound ones; if it cannot be cut off, the file is left as it is.
      if (written > 0 && ::ftruncate(segment.file, segment.bytes) != 0) active_ = -1;
      return false;
    }
    written += count;
  }
  segment.bytes += stride;
  counters_.bytes += stride;
  return true;
}

bool DiskStore::start_segment() {
  const int64_t id = segments_.empty() ? 0 : segments_.rbegin()->first + 1;
  const int file = ::open(path_of(id).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) return false;
  ::fsync(folder_file_);  // without it a crash of the machine may lose the file, and with it what is saved there
  segments_[id] = {.file = file};
  active_ = id;
  counters_.segments = static_cast<int64_t>(segments_.size());
  return true;
}

bool DiskStore::make_room(int64_t bytes) {
  if (bytes > options_.max_bytes) return false;
  while (counters_.bytes + bytes > options_.max_bytes)
    if (!evict_oldest()) return false;
  return true;
}

bool DiskStore::evict_oldest() {
  if (segments_.empty()) return false;
  const auto oldest = segments_.begin();
  const auto id = oldest->first;
  Segment& segment = oldest->second;
  if (id == active_) active_ = -1;
  for (const ContentKey& key : segment.units) drop_unit(key);
  for (const ContentKey& key : segment.blocks)
    if (const auto place = blocks_.find(key); place != blocks_.end() && place->second.segment == id)
      blocks_.erase(place);
  ::close(segment.file);
  ::unlink(path_of(id).c_str());
  counters_.bytes -= segment.bytes;
  ++counters_.segments_evicted;
  segments_.erase(oldest);
  counters_.segments = static_cast<int64_t>(segments_.size());
  return true;
}

void DiskStore::drop_unit(const ContentKey& key) {
  if (units_.erase(key) == 0) return;
  --counters_.units;
  gone_.push_back(key);
}

bool DiskStore::read_record(const ContentKey& key, const Place& place, RecordKind kind, std::span<std::byte> payload) {
  HeaderBytes bytes;
  iovec parts[] = {part(bytes), part(payload)};
  if (!read_fully(segments_.at(place.segment).file, parts, place.offset)) {
    ++counters_.read_failures;
    return false;
  }
  const std::optional<RecordHeader> header = decode_header(bytes, options_.fingerprint);
  const bool is_sound = header && header->kind == kind && header->group == place.group && header->key == key &&
                        checksum_fits(*header, options_.fingerprint, payload);
  counters_.damaged_records += !is_sound;
  return is_sound;
}

bool DiskStore::has_unit(const ContentKey& key, uint64_t salt, std::span<const int32_t> tokens) {
  const auto place = units_.find(key);
  if (place == units_.end()) return false;
  std::vector<std::byte> payload(place->second.payload_bytes);
  if (read_record(key, place->second, RecordKind::kUnit, payload)) {
    const std::optional<UnitRecord> unit = decode_unit(payload);
    if (unit && unit->salt == salt &&
        std::equal(tokens.begin(), tokens.end(), unit->tokens.begin(), unit->tokens.end()))
      return true;
    if (unit) return false;  // another unit with the same key: that one stays
  }
  drop_unit(key);
  return false;
}

void DiskStore::prefetch(const ContentKey& key) const {
  const auto place = blocks_.find(key);
  if (place == blocks_.end()) return;
  ::posix_fadvise(segments_.at(place->second.segment).file, place->second.offset,
                  kHeaderBytes + place->second.payload_bytes, POSIX_FADV_WILLNEED);
}

bool DiskStore::get_block(const ContentKey& key, uint32_t group, std::span<std::byte> out) {
  const auto place = blocks_.find(key);
  if (place == blocks_.end()) return false;
  if (place->second.group == group && place->second.payload_bytes == static_cast<int64_t>(out.size()) &&
      read_record(key, place->second, RecordKind::kBlock, out))
    return true;
  blocks_.erase(place);  // it may be saved again
  return false;
}

}  // namespace deepinfer
