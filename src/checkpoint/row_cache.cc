#include "checkpoint/row_cache.h"

#include <bit>
#include <cstring>

namespace deepinfer {
namespace {

constexpr int64_t kMaxParts = 16;
constexpr int64_t kMinRowsPerPart = 64;

// Neighbouring rows must spread over parts and places.
uint64_t scramble(int64_t row) {
  uint64_t x = static_cast<uint64_t>(row) * 0x9E3779B97F4A7C15u;
  x ^= x >> 29;
  x *= 0xBF58476D1CE4E5B9u;
  return x ^ (x >> 32);
}

}  // namespace

RowCache::RowCache(int64_t capacity_rows, int64_t row_bytes) : capacity_rows_(capacity_rows), row_bytes_(row_bytes) {
  if (capacity_rows == 0) return;
  int64_t num_parts = 1;
  while (num_parts < kMaxParts && capacity_rows / (2 * num_parts) >= kMinRowsPerPart) num_parts *= 2;
  for (int64_t p = 0; p < num_parts; ++p) {
    const auto slots = static_cast<size_t>(capacity_rows / num_parts + (p < capacity_rows % num_parts ? 1 : 0));
    auto part = std::make_unique<Part>();
    part->index.assign(std::bit_ceil(2 * slots), -1);  // at most half full, so probes end soon
    part->rows.assign(slots, -1);
    part->used.assign(slots, 0);
    part->data.resize(slots * static_cast<size_t>(row_bytes));
    parts_.push_back(std::move(part));
  }
}

int64_t RowCache::memory_bytes() const {
  size_t bytes = 0;
  for (const auto& part : parts_)
    bytes += sizeof(Part) + part->data.size() + part->used.size() + part->rows.size() * sizeof(int64_t) +
             part->index.size() * sizeof(int32_t);
  return static_cast<int64_t>(bytes);
}

RowCache::Part& RowCache::part_of(int64_t row) { return *parts_[scramble(row) & (parts_.size() - 1)]; }

// Uses other bits of the scrambled number than part_of, or a part's rows would crowd.
size_t RowCache::home(const Part& part, int64_t row) { return (scramble(row) >> 8) & (part.index.size() - 1); }

int RowCache::find(const Part& part, int64_t row) {
  const size_t mask = part.index.size() - 1;
  for (size_t place = home(part, row); part.index[place] >= 0; place = (place + 1) & mask)
    if (part.rows[part.index[place]] == row) return part.index[place];
  return -1;
}

// Removes the row from the index by closing the gap, so that no markers of removed entries pile up.
void RowCache::erase(Part& part, int64_t row) {
  const size_t mask = part.index.size() - 1;
  size_t gap = home(part, row);
  while (part.rows[part.index[gap]] != row) gap = (gap + 1) & mask;
  for (size_t place = (gap + 1) & mask; part.index[place] >= 0; place = (place + 1) & mask) {
    const size_t wanted = home(part, part.rows[part.index[place]]);
    if (((place - wanted) & mask) < ((place - gap) & mask)) continue;  // would move in front of its home
    part.index[gap] = part.index[place];
    gap = place;
  }
  part.index[gap] = -1;
}

// The next slot that is empty or was not used since the hand last passed; its row leaves the index.
size_t RowCache::free_slot(Part& part) {
  while (part.used[part.hand]) {
    part.used[part.hand] = 0;
    part.hand = (part.hand + 1) % part.rows.size();
  }
  const size_t slot = part.hand;
  part.hand = (part.hand + 1) % part.rows.size();
  if (part.rows[slot] >= 0) erase(part, part.rows[slot]);
  return slot;
}

bool RowCache::read(int64_t row, std::byte* out) {
  if (parts_.empty()) return false;
  Part& part = part_of(row);
  const std::lock_guard lock(part.mutex);
  const int slot = find(part, row);
  if (slot < 0) return false;
  part.used[slot] = 1;
  std::memcpy(out, part.data.data() + slot * row_bytes_, static_cast<size_t>(row_bytes_));
  return true;
}

bool RowCache::contains(int64_t row) {
  if (parts_.empty()) return false;
  Part& part = part_of(row);
  const std::lock_guard lock(part.mutex);
  return find(part, row) >= 0;
}

void RowCache::insert(int64_t row, const std::byte* bytes) {
  if (parts_.empty()) return;
  Part& part = part_of(row);
  const std::lock_guard lock(part.mutex);
  if (find(part, row) >= 0) return;
  const size_t slot = free_slot(part);
  part.rows[slot] = row;
  part.used[slot] = 0;  // the hand has just passed: until it returns, every other unused row goes first
  std::memcpy(part.data.data() + slot * static_cast<size_t>(row_bytes_), bytes, static_cast<size_t>(row_bytes_));
  size_t place = home(part, row);
  while (part.index[place] >= 0) place = (place + 1) & (part.index.size() - 1);
  part.index[place] = static_cast<int32_t>(slot);
}

}  // namespace deepinfer
