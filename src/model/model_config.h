// ModelConfig: config.json of a deepseek_v41 checkpoint, read and checked. Fields carry the names they have in the file
// (inside text_config, unless said otherwise); the flat dialect's names are accepted as aliases.
//
// A value of this type that came from `from_json` or `from_file` satisfies every rule of model_config_rules.h, so its
// consumers need not check again: no product of sizes overflows int64, lists are sorted and in range.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer {

// YaRN for the layers with a compress ratio > 0; no mscale.
struct RopeScaling {
  double factor = 1;
  double beta_fast = 32;
  double beta_slow = 1;
  int64_t original_max_position_embeddings = 0;  // positions
};

// The n-gram tables. Without any, layer_ids is empty and the other fields mean nothing.
struct EngramConfig {
  std::vector<int64_t> layer_ids;       // ascending
  std::vector<int64_t> num_embeddings;  // rows of each layer's table
  int64_t max_ngram_size = 0;           // orders 2..this
  int64_t n_heads = 0;                  // hash heads an order
  int64_t head_dim = 0;                 // values a row, a multiple of 32
  int64_t vocab_size = 0;               // the prime search starts here; no token count
  int64_t pad_token_id = 0;             // a tokenizer id: map it to a compressed id before hashing
  int64_t compressed_vocab_size = 0;    // compressed ids are below this

  bool enabled() const { return !layer_ids.empty(); }
  int64_t num_tables() const { return static_cast<int64_t>(layer_ids.size()); }
  int64_t num_columns() const { return (max_ngram_size - 1) * n_heads; }  // rows fetched a token and layer
};

// The DSpark drafter (mtp.* tensors).
struct DraftConfig {
  int64_t num_stages = 0;  // num_nextn_predict_layers; 0: no drafter
  int64_t block_size = 0;
  int64_t noise_token_id = 0;
  std::vector<int64_t> target_layer_ids;
  int64_t markov_rank = 0;
  int64_t n_routed_experts = 0;
  int64_t num_experts_per_tok = 0;
};

struct ModelConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t max_position_embeddings = 0;
  float rms_norm_eps = 0;

  // Attention.
  int64_t num_attention_heads = 0;
  int64_t head_dim = 0;          // with the rope part
  int64_t qk_rope_head_dim = 0;  // the last values of a head
  int64_t q_lora_rank = 0;
  int64_t o_groups = 0;
  int64_t o_lora_rank = 0;     // a group
  int64_t sliding_window = 0;  // positions, the query's own included
  double rope_theta = 0;
  double compress_rope_theta = 0;
  std::optional<RopeScaling> rope_scaling;

  // Compression and selection.
  std::vector<int64_t> compress_ratios;  // [num_hidden_layers or more]; 0: window only; extra entries: draft stages
  std::vector<int64_t> kv_source_layer_ids;
  std::vector<int64_t> index_source_layer_ids;
  int64_t candidate_source_layer_id = -1;  // -1: no candidate filter
  int64_t candidate_topk_blocks = 0;
  int64_t candidate_block_size = 0;  // compressed rows
  int64_t index_n_heads = 0;
  int64_t index_head_dim = 0;
  int64_t index_topk = 0;  // compressed rows

  // Experts.
  int64_t moe_intermediate_size = 0;  // of a routed and of the shared expert
  int64_t n_routed_experts = 0;
  int64_t num_experts_per_tok = 0;
  bool norm_topk_prob = true;
  float routed_scaling_factor = 1;
  float swiglu_limit = 0;
  float gate_temp = 1;  // router logits are divided by it

  // Residual streams.
  int64_t hc_mult = 0;
  int64_t hc_sinkhorn_iters = 0;
  float hc_eps = 0;

  EngramConfig engram;
  DraftConfig draft;
  bool has_vision = false;  // root: vision_config is present

  // Root; -1 or empty if not given.
  int64_t bos_token_id = -1;
  std::vector<int64_t> eos_token_ids;
  int64_t pad_token_id = -1;
  int64_t image_token_id = -1;

  // `text`: the whole file; `file_name` is for messages.
  static Result<ModelConfig> from_json(std::string_view file_name, std::string_view text);
  static Result<ModelConfig> from_file(const std::string& path);
};

}  // namespace deepinfer
