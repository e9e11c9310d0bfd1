#include "model/model_config_rules.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "checkpoint/shown.h"
#include "model/engram_hash.h"

namespace deepinfer {
namespace {

constexpr int64_t kTile = 32;  // FP8 weights have a scale per 32x32 values, activations one per 32

bool contains(const std::vector<int64_t>& ids, int64_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

Status check_sizes(const ModelConfig& c) {
  const std::pair<const char*, int64_t> tiled[] = {
      {"hidden_size", c.hidden_size},
      {"q_lora_rank", c.q_lora_rank},
      {"head_dim", c.head_dim},
      {"moe_intermediate_size", c.moe_intermediate_size},
      {"index_head_dim", c.index_head_dim},
      {"o_groups * o_lora_rank", c.o_groups * c.o_lora_rank},
  };
  for (const auto& [key, value] : tiled)
    if (value % kTile != 0)
      return invalid_input("{} is {}, expected a multiple of {} (the tile of the FP8 weights)", key, value, kTile);
  if (c.num_attention_heads % c.o_groups != 0)
    return invalid_input("num_attention_heads is {}, expected a multiple of o_groups, which is {}",
                         c.num_attention_heads, c.o_groups);
  if (c.qk_rope_head_dim % 2 != 0 || c.qk_rope_head_dim > std::min(c.head_dim, c.index_head_dim))
    return invalid_input(
        "qk_rope_head_dim is {}, expected an even number of at most head_dim ({}) and index_head_dim ({})",
        c.qk_rope_head_dim, c.head_dim, c.index_head_dim);
  if (c.num_experts_per_tok > c.n_routed_experts)
    return invalid_input("num_experts_per_tok is {}, expected at most n_routed_experts, which is {}",
                         c.num_experts_per_tok, c.n_routed_experts);
  return {};
}

// Layer ids ascend strictly and name backbone layers.
Status check_layer_list(const char* key, const std::vector<int64_t>& ids, int64_t num_layers) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= num_layers)
      return invalid_input("{} names layer {}, but num_hidden_layers is {}", key, ids[i], num_layers);
    if (i > 0 && ids[i] <= ids[i - 1])
      return invalid_input("{} is {}, expected ascending layers without repetition", key, shown(ids));
  }
  return {};
}

Status check_sources(const ModelConfig& c) {
  DI_RETURN_IF_ERROR(check_layer_list("kv_source_layer_ids", c.kv_source_layer_ids, c.num_hidden_layers));
  DI_RETURN_IF_ERROR(check_layer_list("index_source_layer_ids", c.index_source_layer_ids, c.num_hidden_layers));
  for (const int64_t layer : c.kv_source_layer_ids)
    if (!contains(c.index_source_layer_ids, layer))
      return invalid_input(
          "kv_source_layer_ids names layer {}, which index_source_layer_ids does not: every KV source "
          "must select its own rows",
          layer);
  for (const auto* list : {&c.kv_source_layer_ids, &c.index_source_layer_ids})
    for (const int64_t layer : *list)
      if (c.compress_ratios[layer] == 0)
        return invalid_input("compress_ratios[{}] is 0, but {} names layer {} as a source", layer,
                             list == &c.kv_source_layer_ids ? "kv_source_layer_ids" : "index_source_layer_ids", layer);
  return {};
}

// Every layer with compressed rows reads those of the nearest KV source before it, so the ratios must agree.
Status check_ratios(const ModelConfig& c) {
  int64_t source = -1;
  for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
    if (contains(c.kv_source_layer_ids, layer)) source = layer;
    const int64_t ratio = c.compress_ratios[layer];
    if (ratio == 0) continue;
    if (source < 0)
      return invalid_input("compress_ratios[{}] is {}, but kv_source_layer_ids names no layer up to {}", layer, ratio,
                           layer);
    if (ratio != c.compress_ratios[source])
      return invalid_input("compress_ratios[{}] is {}, expected {}, the ratio of its KV source, layer {}", layer, ratio,
                           c.compress_ratios[source], source);
  }
  return {};
}

Status check_candidates(const ModelConfig& c) {
  const int64_t source = c.candidate_source_layer_id;
  if (source < 0) return {};
  if (!contains(c.index_source_layer_ids, source))
    return invalid_input("candidate_source_layer_id is {}, expected one of index_source_layer_ids {} or -1", source,
                         shown(c.index_source_layer_ids));
  for (const int64_t kv : c.kv_source_layer_ids)
    if (kv > source)
      return invalid_input(
          "candidate_source_layer_id is {}, but the KV source {} comes after it: index sources after it "
          "must share its KV source",
          source, kv);
  // The newest block may hold a single visible row, the others are full.
  const int64_t pool = c.candidate_topk_blocks * c.candidate_block_size - (c.candidate_block_size - 1);
  if (pool < c.index_topk)
    return invalid_input(
        "candidate_topk_blocks {} of candidate_block_size {} guarantee {} rows, expected at least "
        "index_topk, which is {}",
        c.candidate_topk_blocks, c.candidate_block_size, pool, c.index_topk);
  return {};
}

Status check_engram(const ModelConfig& c) {
  const EngramConfig& e = c.engram;
  if (!e.enabled()) return {};
  DI_RETURN_IF_ERROR(check_layer_list("engram_layer_ids", e.layer_ids, c.num_hidden_layers));
  if (e.num_embeddings.size() != e.layer_ids.size())
    return invalid_input("engram_num_embeddings has {} entries, expected one for each of the {} engram_layer_ids",
                         e.num_embeddings.size(), e.layer_ids.size());
  if (e.head_dim % kTile != 0)
    return invalid_input("engram_head_dim is {}, expected a multiple of {} (a row has one scale per {} values)",
                         e.head_dim, kTile, kTile);
  if (e.compressed_vocab_size > c.vocab_size)
    return invalid_input("engram_compressed_vocab_size is {}, expected at most vocab_size, which is {}",
                         e.compressed_vocab_size, c.vocab_size);
  if (e.pad_token_id >= c.vocab_size)
    return invalid_input("engram_pad_token_id is {}, expected a token id below vocab_size, which is {}", e.pad_token_id,
                         c.vocab_size);
  const auto primes = engram_primes(e);
  for (size_t table = 0; table < primes.size(); ++table) {
    const auto rows = static_cast<int64_t>(std::accumulate(primes[table].begin(), primes[table].end(), uint64_t{0}));
    if (rows != e.num_embeddings[table])
      return invalid_input(
          "engram_num_embeddings[{}] is {}, expected {}, the sum of the {} primes from engram_vocab_size {} "
          "on",
          table, e.num_embeddings[table], rows, primes[table].size(), e.vocab_size);
  }
  return {};
}

Status check_token_ids(const ModelConfig& c) {
  const auto check = [&](const char* key, int64_t id) {
    return id < c.vocab_size
               ? Status()
               : invalid_input("{} is {}, expected a token id below vocab_size, which is {}", key, id, c.vocab_size);
  };
  DI_RETURN_IF_ERROR(check("bos_token_id", c.bos_token_id));
  for (const int64_t id : c.eos_token_ids) DI_RETURN_IF_ERROR(check("eos_token_id", id));
  DI_RETURN_IF_ERROR(check("pad_token_id", c.pad_token_id));
  DI_RETURN_IF_ERROR(check("image_token_id", c.image_token_id));
  return check("dspark_noise_token_id", c.draft.noise_token_id);
}

}  // namespace

Status check_model_config(const ModelConfig& c) {
  DI_RETURN_IF_ERROR(check_sizes(c));
  if (static_cast<int64_t>(c.compress_ratios.size()) < c.num_hidden_layers)
    return invalid_input("compress_ratios has {} entries, expected at least num_hidden_layers, which is {}",
                         c.compress_ratios.size(), c.num_hidden_layers);
  DI_RETURN_IF_ERROR(check_sources(c));
  DI_RETURN_IF_ERROR(check_ratios(c));
  DI_RETURN_IF_ERROR(check_candidates(c));
  DI_RETURN_IF_ERROR(check_engram(c));
  return check_token_ids(c);
}

}  // namespace deepinfer
