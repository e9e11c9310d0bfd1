// Any bytes as model.safetensors.index.json (and as a token map): either an error, or lists that are sorted and in
// range.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "checkpoint/checkpoint_index.h"
#include "checkpoint/token_map.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto index = deepinfer::parse_checkpoint_index("input", text);
  if (index.ok()) {
    DI_CHECK(!index->entries.empty() && !index->shards.empty(), "an empty index was accepted");
    for (size_t i = 0; i < index->entries.size(); ++i) {
      const auto& entry = index->entries[i];
      DI_CHECK(entry.shard >= 0 && static_cast<size_t>(entry.shard) < index->shards.size(), "shard {}", entry.shard);
      DI_CHECK(i == 0 || index->entries[i - 1].tensor < entry.tensor, "tensors are not ascending");
    }
    for (const auto& shard : index->shards)
      DI_CHECK(shard.find('/') == shard.npos && shard != "..", "a path: {}", shard);
  }
  const auto map = deepinfer::parse_token_map("input", text, 4, 3);
  if (map.ok())
    for (const int32_t id : *map) DI_CHECK(id >= 0 && id < 3, "id {}", id);
  return 0;
}
