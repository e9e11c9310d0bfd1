#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <filesystem>

#include "checkpoint/checkpoint_index.h"
#include "checkpoint/shown.h"

namespace deepinfer {
namespace {

constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr const char* kSingleFile = "model.safetensors";

std::string join(const std::string& folder, const std::string& file) {
  return (std::filesystem::path(folder) / file).string();
}

bool exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(std::filesystem::symlink_status(path, error));
}

Status check_folder(const std::string& folder) {
  std::error_code error;
  const auto status = std::filesystem::status(folder, error);
  if (!std::filesystem::exists(status))
    return not_found("the model folder {} does not exist; check the path", shown(folder));
  if (!std::filesystem::is_directory(status))
    return invalid_input("{} is not a folder; give the folder that holds {} or {}", shown(folder), kSingleFile,
                         kIndexFile);
  return {};
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::string& folder) {
  DI_RETURN_IF_ERROR(check_folder(folder));
  Checkpoint checkpoint(folder);
  const std::string index_path = join(folder, kIndexFile);
  if (!exists(index_path)) {
    if (!exists(join(folder, kSingleFile)))
      return not_found("the model folder {} holds neither {} nor {}; download the checkpoint into it", shown(folder),
                       kIndexFile, kSingleFile);
    DI_RETURN_IF_ERROR(checkpoint.add_shard(kSingleFile));
    DI_RETURN_IF_ERROR(checkpoint.sort_by_name());
    return checkpoint;
  }
  DI_ASSIGN_OR_RETURN(const MappedFile index_file, MappedFile::open(index_path));
  DI_ASSIGN_OR_RETURN(const CheckpointIndex index, parse_checkpoint_index(index_path, index_file.text()));
  for (const std::string& shard : index.shards) {
    if (!exists(join(folder, shard)))
      return not_found("{} places tensors in the shard {}, which is not in the folder; download it", index_path,
                       shown(shard));
    DI_RETURN_IF_ERROR(checkpoint.add_shard(shard));
  }
  DI_RETURN_IF_ERROR(checkpoint.sort_by_name());
  DI_RETURN_IF_ERROR(checkpoint.compare_with_index(index));
  return checkpoint;
}

Status Checkpoint::add_shard(const std::string& file_name) {
  const std::string path = join(folder_, file_name);
  auto file = MappedFile::open(path);
  if (!file.ok()) return std::move(file).status();
  auto tensors = parse_safetensors(path, file->bytes());
  if (!tensors.ok()) return std::move(tensors).status();
  Shard shard{
      .file_name = file_name, .file_bytes = file->bytes().size(), .num_tensors = static_cast<int64_t>(tensors->size())};
  for (StoredTensor& tensor : *tensors) {
    tensor.shard = static_cast<int>(shards_.size());
    shard.tensor_bytes += tensor.bytes;
    tensors_.push_back(std::move(tensor));
  }
  total_bytes_ += shard.tensor_bytes;
  shards_.push_back(std::move(shard));
  files_.push_back(std::move(file).value());
  return {};
}

Status Checkpoint::sort_by_name() {
  std::sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  const auto twin = std::adjacent_find(tensors_.begin(), tensors_.end(),
                                       [](const auto& a, const auto& b) { return a.name == b.name; });
  if (twin == tensors_.end()) return {};
  return invalid_input("{}: tensor {} is in both {} and {}; the shards are of different downloads, download them again",
                       folder_, shown(twin->name), shards_[twin[0].shard].file_name, shards_[twin[1].shard].file_name);
}

Status Checkpoint::compare_with_index(const CheckpointIndex& index) const {
  // Both lists ascend by name, so the first difference is where the two disagree.
  for (size_t i = 0; i < std::max(index.entries.size(), tensors_.size()); ++i) {
    const auto* entry = i < index.entries.size() ? &index.entries[i] : nullptr;
    const auto* tensor = i < tensors_.size() ? &tensors_[i] : nullptr;
    if (entry && (!tensor || entry->tensor < tensor->name))
      return not_found("{}/{}: tensor {} should be in {}, but no shard holds it; download index and shard again",
                       folder_, kIndexFile, shown(entry->tensor), index.shards[entry->shard]);
    if (!entry || tensor->name < entry->tensor)
      return invalid_input(
          "{}/{}: tensor {} of {} is not listed; index and shards are of different downloads, download "
          "them again",
          folder_, kIndexFile, shown(tensor->name), shards_[tensor->shard].file_name);
    if (entry->shard != tensor->shard)
      return invalid_input("{}/{}: tensor {} should be in {}, but is in {}; download index and shards again", folder_,
                           kIndexFile, shown(entry->tensor), index.shards[entry->shard],
                           shards_[tensor->shard].file_name);
  }
  return {};
}

const StoredTensor* Checkpoint::find(std::string_view name) const {
  const auto it = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                   [](const StoredTensor& tensor, std::string_view key) { return tensor.name < key; });
  return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

Result<const StoredTensor*> Checkpoint::require(std::string_view name, DType dtype,
                                                std::span<const int64_t> shape) const {
  const StoredTensor* tensor = find(name);
  if (!tensor)
    return not_found(
        "{}: tensor {} ({} {}) is missing; the checkpoint is incomplete or does not belong to its config.json", folder_,
        shown(name), name_of(dtype), shown(shape));
  const std::string where = fmt::format("{}/{}", folder_, shards_[tensor->shard].file_name);
  if (!is_supported(tensor->dtype))
    return unsupported("{}: dtype {} is not supported for {}, expected {}; convert the checkpoint", where,
                       name_of(tensor->dtype), shown(name), name_of(dtype));
  if (tensor->dtype != dtype)
    return invalid_input("{}: tensor {} has dtype {}, expected {}; use the checkpoint as released", where, shown(name),
                         name_of(tensor->dtype), name_of(dtype));
  if (!std::equal(shape.begin(), shape.end(), tensor->shape.begin(), tensor->shape.end()))
    return invalid_input("{}: tensor {} has shape {}, expected {}; the checkpoint does not belong to its config.json",
                         where, shown(name), shown(tensor->shape), shown(shape));
  return tensor;
}

}  // namespace deepinfer
