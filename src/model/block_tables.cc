#include "model/block_tables.h"

#include <algorithm>

#include "base/check.h"
#include "device/array.h"

namespace deepinfer {
namespace {

constexpr int64_t kLeastCapacity = 8;
constexpr int64_t kEntryBytes = sizeof(std::byte*);

}  // namespace

// Room for `size` entries in one group. Every group moves.
Status BlockTables::reserve(int group, int64_t size) {
  if (size <= groups_[group].capacity) return Status();
  std::vector<Group> grown(groups_);
  grown[group].capacity = std::max({size, 2 * grown[group].capacity, kLeastCapacity});
  int64_t total = 0;
  for (Group& g : grown) {
    g.begin = total;
    g.changed_begin = 0;
    g.changed_end = g.size;
    total += g.capacity;
  }
  const int64_t bytes = total * kEntryBytes;
  DI_ASSIGN_OR_RETURN(std::shared_ptr<std::byte> host, device_->allocate_pinned(bytes));
  std::shared_ptr<std::byte> table = host;
  if (!device_->shares_host_memory()) {
    DI_ASSIGN_OR_RETURN(table, allocate_on(*device_, bytes, "a sequence's block tables",
                                           "lower max_num_seqs, max_model_len or kv_cache_bytes"));
  }
  for (size_t g = 0; g < grown.size(); ++g)
    std::copy_n(entries(host_) + groups_[g].begin, grown[g].size, entries(host) + grown[g].begin);
  groups_ = std::move(grown);
  host_ = std::move(host);
  table_ = std::move(table);
  return Status();
}

Status BlockTables::reset(std::span<const int64_t> sizes) {
  for (Group& g : groups_) g.size = 0;
  for (size_t g = 0; g < groups_.size(); ++g) DI_RETURN_IF_ERROR(reserve(static_cast<int>(g), sizes[g]));
  for (size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    std::fill_n(entries(host_) + group.begin, sizes[g], nullptr);
    group.size = group.changed_end = sizes[g];
    group.changed_begin = 0;
  }
  return Status();
}

Status BlockTables::append(int group, std::byte* block) {
  const int64_t number = groups_[group].size;
  DI_RETURN_IF_ERROR(reserve(group, number + 1));
  groups_[group].size = number + 1;
  set(group, number, block);
  return Status();
}

void BlockTables::set(int group, int64_t number, std::byte* block) {
  Group& g = groups_[group];
  DI_CHECK(number >= 0 && number < g.size, "block {} of {} in group {}", number, g.size, group);
  entries(host_)[g.begin + number] = block;
  if (g.changed_begin == g.changed_end) {
    g.changed_begin = number;
    g.changed_end = number + 1;
  } else {
    g.changed_begin = std::min(g.changed_begin, number);
    g.changed_end = std::max(g.changed_end, number + 1);
  }
}

void BlockTables::upload(Stream& stream) {
  for (Group& g : groups_) {
    const int64_t count = g.changed_end - g.changed_begin;
    if (count > 0 && host_ != table_) {
      const int64_t first = g.begin + g.changed_begin;
      stream.copy(entries(table_) + first, entries(host_) + first, count * kEntryBytes);
    }
    g.changed_begin = g.changed_end = 0;
  }
}

}  // namespace deepinfer
