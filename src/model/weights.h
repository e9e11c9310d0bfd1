// The backbone's weights, bound by name and shape from a checkpoint and packed for a device.
//
// Big matrices are packed (copied into the backend's layout); the token embedding and the Engram tables stay in the
// mapped file and are read row by row, so the checkpoint must outlive the weights.
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
#include "device/stream.h"
#include "model/layer_plan.h"
#include "model/model_config.h"
#include "ops/linear.h"

namespace deepinfer {

struct MhcWeights {
  ops::PackedWeight fn;      // [h * (h + 2), h * hidden]
  std::vector<float> scale;  // [3]
  std::vector<float> base;   // [h * (h + 2)]
};

struct CompressorWeights {
  ops::PackedWeight wkv;                   // [head_dim, hidden]
  std::optional<ops::PackedWeight> wgate;  // likewise; absent for ratio 1
  std::vector<float> norm;                 // [head_dim]
  ops::PackedWeight index_wk;              // [index_head_dim, head_dim]
  std::vector<float> index_k_norm;         // [index_head_dim]
};

struct IndexerWeights {
  ops::PackedWeight wq_b;          // [index_n_heads * index_head_dim, q_lora_rank]
  ops::PackedWeight weights_proj;  // [index_n_heads, hidden]
};

struct AttentionWeights {
  std::vector<float> norm;  // [hidden]
  std::vector<float> sink;  // [num_heads]
  ops::PackedWeight wq_a;   // [q_lora_rank, hidden]
  std::vector<float> q_norm;
  ops::PackedWeight wq_b;  // [num_heads * head_dim, q_lora_rank]
  ops::PackedWeight wkv;   // [head_dim, hidden]
  std::vector<float> kv_norm;
  std::vector<ops::PackedWeight> wo_a;          // o_groups of [o_lora_rank, num_heads * head_dim / o_groups]
  ops::PackedWeight wo_b;                       // [hidden, o_groups * o_lora_rank]
  std::optional<CompressorWeights> compressor;  // KV sources
  std::optional<IndexerWeights> indexer;        // index sources
};

struct ExpertWeights {
  ops::PackedWeight w1;  // gate, [intermediate, hidden]
  ops::PackedWeight w2;  // down, [hidden, intermediate]
  ops::PackedWeight w3;  // up, [intermediate, hidden]
};

struct MoeWeights {
  std::vector<float> norm;  // [hidden]
  ops::PackedWeight gate;   // [num_experts, hidden]
  std::vector<float> bias;  // [num_experts]
  std::vector<ExpertWeights> experts;
  ExpertWeights shared;
};

struct EngramWeights {
  ops::PackedWeight wkv;         // [(h + 1) * hidden, num_columns * head_dim]
  std::vector<float> query_key;  // [h, hidden]: q_weight * k_weight
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
  const std::byte* embed = nullptr;  // BF16 [vocab, hidden], in the mapped file
  ops::PackedWeight head;            // [vocab, hidden]
  std::vector<float> norm;           // [hidden]
  std::vector<LayerWeights> layers;
};

// Called while loading with the bytes done so far and their total.
using LoadProgress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

// Every tensor the config calls for must be there with the right type and shape and hold only finite values; rows of
// the Engram tables are looked at when they are read.
Result<ModelWeights> load_weights(Stream& stream, const Checkpoint& checkpoint, const ModelConfig& config,
                                  const LayerPlan& plan, int64_t engram_cache_rows, const LoadProgress& progress);

}  // namespace deepinfer
