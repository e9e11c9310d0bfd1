// The backbone's weights, bound by name and shape from a checkpoint and packed for a device.
//
// Big matrices are packed (copied into the backend's layout). The token embedding stays in the mapped file where a
// device can read it there, and the Engram tables always do, so the checkpoint must outlive the weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/engram_table.h"
#include "device/array.h"
#include "device/stream.h"
#include "model/layer_plan.h"
#include "model/model_config.h"
#include "ops/linear.h"
#include "ops/moe.h"

namespace deepinfer {

struct MhcWeights {
  ops::PackedWeight fn;      // [h * (h + 2), h * hidden]
  DeviceArray<float> scale;  // [3]
  DeviceArray<float> base;   // [h * (h + 2)]
};

struct CompressorWeights {
  ops::PackedWeight wkv;                   // [head_dim, hidden]
  std::optional<ops::PackedWeight> wgate;  // likewise; absent for ratio 1
  DeviceArray<float> norm;                 // [head_dim]
  ops::PackedWeight index_wk;              // [index_head_dim, head_dim]
  DeviceArray<float> index_k_norm;         // [index_head_dim]
};

struct IndexerWeights {
  ops::PackedWeight wq_b;          // [index_n_heads * index_head_dim, q_lora_rank]
  ops::PackedWeight weights_proj;  // [index_n_heads, hidden]
};

struct AttentionWeights {
  DeviceArray<float> norm;  // [hidden]
  DeviceArray<float> sink;  // [num_heads]
  ops::PackedWeight wq_a;   // [q_lora_rank, hidden]
  DeviceArray<float> q_norm;
  ops::PackedWeight wq_b;  // [num_heads * head_dim, q_lora_rank]
  ops::PackedWeight wkv;   // [head_dim, hidden]
  DeviceArray<float> kv_norm;
  std::vector<ops::PackedWeight> wo_a;          // o_groups of [o_lora_rank, num_heads * head_dim / o_groups]
  ops::PackedWeight wo_b;                       // [hidden, o_groups * o_lora_rank]
  std::optional<CompressorWeights> compressor;  // KV sources
  std::optional<IndexerWeights> indexer;        // index sources
};

struct MoeWeights {
  DeviceArray<float> norm;  // [hidden]
  ops::PackedWeight gate;   // [num_experts, hidden]
  DeviceArray<float> bias;  // [num_experts]
  ops::ExpertBank experts;
};

struct EngramWeights {
  ops::PackedWeight wkv;         // [(h + 1) * hidden, num_columns * head_dim]
  DeviceArray<float> query_key;  // [h, hidden]: q_weight * k_weight
  std::unique_ptr<EngramTable> table;
};

struct LayerWeights {
  MhcWeights attention_mhc;
  MhcWeights ffn_mhc;
  AttentionWeights attention;
  MoeWeights moe;
  std::optional<EngramWeights> engram;
};

struct ModelWeights {
  std::shared_ptr<const std::byte> embed;  // BF16 [vocab, hidden]
  ops::PackedWeight head;                  // [vocab, hidden]
  DeviceArray<float> norm;                 // [hidden]
  std::vector<LayerWeights> layers;
};

// Called while loading with the bytes done so far and their total.
using LoadProgress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

// Every tensor the config calls for must be there with the right type and shape and hold only finite values; rows of
// the Engram tables are looked at when they are read.
Result<ModelWeights> load_weights(Device& device, Stream& stream, const Checkpoint& checkpoint,
                                  const ModelConfig& config, const LayerPlan& plan, int64_t engram_cache_rows,
                                  const LoadProgress& progress);

}  // namespace deepinfer
