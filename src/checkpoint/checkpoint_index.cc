#include "checkpoint/checkpoint_index.h"

#include <algorithm>

#include <simdjson.h>

#include "checkpoint/shown.h"

namespace deepinfer {
namespace {

constexpr size_t kMaxIndexBytes = size_t{256} << 20;
constexpr size_t kMaxShards = 10'000;
constexpr std::string_view kRemedy = "download the index file again";

// Shards lie in the model folder itself; anything else could reach outside of it.
bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == name.npos && name.find('\0') == name.npos;
}

struct Placement {
  std::string_view tensor, shard;
};

Result<std::vector<Placement>> read_weight_map(std::string_view file_name, simdjson::dom::element root) {
  simdjson::dom::object map;
  if (!root.is_object() || root["weight_map"].get(map))
    return invalid_input("{}: there is no object \"weight_map\"; {}", file_name, kRemedy);
  std::vector<Placement> placements;
  for (const auto [tensor, value] : map) {
    std::string_view shard;
    if (value.get(shard))
      return invalid_input("{}: the shard of tensor {} is not a string; {}", file_name, shown(tensor), kRemedy);
    if (!is_plain_file_name(shard))
      return invalid_input("{}: tensor {} is placed in {}, which is not the name of a file in the model folder; {}",
                           file_name, shown(tensor), shown(shard), kRemedy);
    placements.push_back({tensor, shard});
  }
  if (placements.empty()) return invalid_input("{}: \"weight_map\" names no tensor; {}", file_name, kRemedy);
  return placements;
}

}  // namespace

Result<CheckpointIndex> parse_checkpoint_index(std::string_view file_name, std::string_view text) {
  if (text.size() > kMaxIndexBytes)
    return invalid_input("{}: {} bytes, an index has at most {}; {}", file_name, text.size(), kMaxIndexBytes, kRemedy);
  const simdjson::padded_string json(text);
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  if (const auto error = parser.parse(json).get(root))
    return invalid_input("{}: not valid JSON ({}); {}", file_name, simdjson::error_message(error), kRemedy);
  DI_ASSIGN_OR_RETURN(std::vector<Placement> placements, read_weight_map(file_name, root));

  std::sort(placements.begin(), placements.end(), [](const auto& a, const auto& b) { return a.tensor < b.tensor; });
  for (size_t i = 1; i < placements.size(); ++i)
    if (placements[i].tensor == placements[i - 1].tensor)
      return invalid_input("{}: tensor {} appears twice; {}", file_name, shown(placements[i].tensor), kRemedy);

  CheckpointIndex index;
  for (const Placement& placement : placements) index.shards.emplace_back(placement.shard);
  std::sort(index.shards.begin(), index.shards.end());
  index.shards.erase(std::unique(index.shards.begin(), index.shards.end()), index.shards.end());
  if (index.shards.size() > kMaxShards)
    return invalid_input("{}: {} shards, at most {} are supported; {}", file_name, index.shards.size(), kMaxShards,
                         kRemedy);
  index.entries.reserve(placements.size());
  for (const Placement& placement : placements) {
    const auto shard = std::lower_bound(index.shards.begin(), index.shards.end(), placement.shard);
    index.entries.push_back({std::string(placement.tensor), static_cast<int>(shard - index.shards.begin())});
  }
  return index;
}

}  // namespace deepinfer
