// Any bytes as config.json: either an error, or a config from which plan and hash can be made without harm.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "checkpoint/generation_config.h"
#include "model/engram_hash.h"
#include "model/layer_plan.h"
#include "model/model_config.h"

using namespace deepinfer;  // NOLINT: a program of its own

namespace {

void use(const ModelConfig& config) {
  const LayerPlan plan = LayerPlan::make(config);
  for (size_t layer = 0; layer < plan.layers.size(); ++layer) {
    const LayerRole& role = plan.layers[layer];
    DI_CHECK((role.compress_ratio > 0) == (role.kv_source >= 0), "layer {}: ratio without KV source", layer);
    DI_CHECK(role.index_source >= role.kv_source, "layer {}: index of another KV source", layer);
    DI_CHECK(role.kv_source <= static_cast<int>(layer), "layer {}: KV source after it", layer);
  }
  if (!config.engram.enabled()) return;
  const auto hash = EngramHash::create(config.engram, 0);
  DI_CHECK(hash.ok(), "{}", hash.status().message());
  std::vector<int32_t> history = {static_cast<int32_t>(config.engram.compressed_vocab_size - 1), 0},
                       window(hash->window_size());
  std::vector<int64_t> rows(hash->num_columns());
  hash->look_back(history, window);
  for (int table = 0; table < hash->num_tables(); ++table) {
    hash->hash(table, window, rows);
    for (const int64_t row : rows) DI_CHECK(row >= 0 && row < config.engram.num_embeddings[table], "row {}", row);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = ModelConfig::from_json("input", text);
  if (config.ok()) use(*config);
  if (!config.ok()) DI_CHECK(config.status().message().starts_with("input: "), "the message does not name the file");
  (void)GenerationConfig::from_json("input", text).ok();
  return 0;
}
