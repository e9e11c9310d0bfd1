// Checkpoint: the tensors of a model folder, by name. Either `model.safetensors.index.json` with its shards, or a
// single `model.safetensors`. Owns the mappings; opening reads headers only. Immutable after open, so usable from any
// thread.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/dtype.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/safetensors.h"

namespace deepinfer {

class Checkpoint {
 public:
  struct Shard {
    std::string file_name;      // inside folder()
    uint64_t file_bytes = 0;    // with the header
    uint64_t tensor_bytes = 0;  // without it
    int64_t num_tensors = 0;
  };

  static Result<Checkpoint> open(const std::string& folder);

  // nullptr if there is no such tensor. Pointers live as long as the checkpoint, also across moves of it.
  const StoredTensor* find(std::string_view name) const;
  // The tensor, or an error that says what is missing or different.
  Result<const StoredTensor*> require(std::string_view name, DType dtype, std::span<const int64_t> shape) const;
  Result<const StoredTensor*> require(std::string_view name, DType dtype, std::initializer_list<int64_t> shape) const {
    return require(name, dtype, std::span<const int64_t>(shape.begin(), shape.size()));
  }

  std::span<const StoredTensor> tensors() const { return tensors_; }  // by name, ascending
  std::span<const Shard> shards() const { return shards_; }           // by file name, ascending
  uint64_t total_bytes() const { return total_bytes_; }               // of all tensors, without headers
  const std::string& folder() const { return folder_; }

 private:
  explicit Checkpoint(std::string folder) : folder_(std::move(folder)) {}
  Status add_shard(const std::string& file_name);
  Status sort_by_name();
  Status compare_with_index(const struct CheckpointIndex& index) const;

  std::string folder_;
  std::vector<MappedFile> files_;  // parallel to shards_
  std::vector<Shard> shards_;
  std::vector<StoredTensor> tensors_;
  uint64_t total_bytes_ = 0;
};

}  // namespace deepinfer
