// BlockTables: where the blocks of one sequence are, by group and block number, in device memory for the ops and in
// host memory for those who place them.
//
// Changes are made on the host and reach the device with `upload`, which a step calls before its ops. Where device
// memory is the host's there is one table only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "device/stream.h"

namespace deepinfer {

class BlockTables {
 public:
  BlockTables(Device& device, int num_groups) : device_(&device), groups_(num_groups) {}

  // Groups of these sizes, all null. Allocates only beyond the largest sizes so far, as `append` does. Nothing that
  // runs may name the tables.
  Status reset(std::span<const int64_t> sizes);
  Status append(int group, std::byte* block);

  int num_groups() const { return static_cast<int>(groups_.size()); }
  int64_t size(int group) const { return groups_[group].size; }
  std::byte* block(int group, int64_t number) const { return host(group)[number]; }
  // Requires: number < size(group).
  void set(int group, int64_t number, std::byte* block);

  std::byte* const* host(int group) const { return entries(host_) + groups_[group].begin; }
  std::byte* const* on_device(int group) const { return entries(table_) + groups_[group].begin; }
  // What was set since the last call. It is read from here when the stream gets there.
  void upload(Stream& stream);

 private:
  struct Group {
    int64_t begin = 0, capacity = 0;  // entries
    int64_t size = 0;
    int64_t changed_begin = 0, changed_end = 0;
  };
  static std::byte** entries(const std::shared_ptr<std::byte>& memory) {
    return reinterpret_cast<std::byte**>(memory.get());
  }
  Status reserve(int group, int64_t size);

  Device* device_;
  std::vector<Group> groups_;
  std::shared_ptr<std::byte> host_, table_;  // the same where device memory is the host's
};

}  // namespace deepinfer
