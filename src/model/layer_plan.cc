#include "model/layer_plan.h"

#include <algorithm>

namespace deepinfer {
namespace {

bool contains(const std::vector<int64_t>& ids, int64_t id) { return std::binary_search(ids.begin(), ids.end(), id); }

// The largest id that is <= layer, or -1.
int nearest_source(const std::vector<int64_t>& ids, int64_t layer) {
  const auto after = std::upper_bound(ids.begin(), ids.end(), layer);
  return after == ids.begin() ? -1 : static_cast<int>(*std::prev(after));
}

LayerRole role_of(const ModelConfig& config, int64_t layer) {
  LayerRole role;
  role.compress_ratio = static_cast<int>(config.compress_ratios[layer]);
  if (role.compress_ratio > 0) {
    role.rope = RopeKind::kCompressed;
    role.is_kv_source = contains(config.kv_source_layer_ids, layer);
    role.kv_source = nearest_source(config.kv_source_layer_ids, layer);
    role.is_index_source = contains(config.index_source_layer_ids, layer);
    role.index_source = nearest_source(config.index_source_layer_ids, layer);
    const int64_t candidates = config.candidate_source_layer_id;
    role.is_candidate_source = layer == candidates;
    role.uses_candidates = candidates >= 0 && role.is_index_source && layer > candidates;
  }
  const auto& engram = config.engram.layer_ids;
  if (contains(engram, layer))
    role.engram_table = static_cast<int>(std::lower_bound(engram.begin(), engram.end(), layer) - engram.begin());
  return role;
}

}  // namespace

LayerPlan LayerPlan::make(const ModelConfig& config) {
  LayerPlan plan;
  plan.layers.reserve(config.num_hidden_layers);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) plan.layers.push_back(role_of(config, layer));
  for (const LayerRole& role : plan.layers) {
    if (role.is_kv_source && role.compress_ratio > 1) plan.group_ratios.push_back(role.compress_ratio);
  }
  std::sort(plan.group_ratios.begin(), plan.group_ratios.end());
  plan.group_ratios.erase(std::unique(plan.group_ratios.begin(), plan.group_ratios.end()), plan.group_ratios.end());
  if (!config.kv_source_layer_ids.empty()) {
    const int64_t last = config.kv_source_layer_ids.back();
    const bool engram_after = config.engram.enabled() && config.engram.layer_ids.back() > last;
    // What the layers behind it select must not come from before it either.
    const bool selects = contains(config.index_source_layer_ids, last) &&
                         (config.candidate_source_layer_id < 0 || config.candidate_source_layer_id >= last);
    if (config.compress_ratios[last] == 1 && !engram_after && selects)
      plan.first_decoder_layer = static_cast<int>(last);
  }
  return plan;
}

}  // namespace deepinfer
