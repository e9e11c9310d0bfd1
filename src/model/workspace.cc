#include "model/workspace.h"

#include <algorithm>

#include "device/array.h"
#include "model/step_graphs.h"

namespace deepinfer {
namespace {

constexpr int64_t kAlignment = 256;  // bytes

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

int RowArena::add(int64_t bytes_a_row) {
  DI_CHECK(capacity_ == 0, "{} has rows already", name_);
  widths_.push_back(bytes_a_row);
  return static_cast<int>(widths_.size()) - 1;
}

int64_t RowArena::bytes_for(int64_t rows) const {
  int64_t bytes = 0;
  for (const int64_t width : widths_) bytes += rows > 0 ? aligned(width * row_bucket(rows)) : 0;
  return bytes;
}

Status RowArena::reserve(int64_t rows) {
  if (rows <= capacity_) return Status();
  memory_.reset();  // the old one makes room for the new one
  capacity_ = 0;
  ++generation_;
  const int64_t capacity = row_bucket(rows);
  DI_ASSIGN_OR_RETURN(memory_, allocate_on(device_, bytes_for(rows), fmt::format("{} {}", capacity, name_),
                                           "lower max_num_batched_tokens or kv_cache_bytes"));
  offsets_.clear();
  int64_t end = 0;
  for (const int64_t width : widths_) {
    offsets_.push_back(end);
    end += aligned(width * capacity);
  }
  capacity_ = capacity;
  return Status();
}

Workspace::Workspace(Device& device, const ModelConfig& c, const LayerPlan& plan, ElementType type)
    : tokens(device, "tokens of a step"),
      kept(device, "tokens of a step in the decoder"),
      outputs(device, "rows of logits"),
      token_ids(tokens, 1),
      streams(tokens, type, c.hc_mult * c.hidden_size),
      u(tokens, type, c.hidden_size),
      u_quantised(tokens, type, c.hidden_size),
      y(tokens, type, c.hidden_size),
      post(tokens, c.hc_mult),
      mix(tokens, c.hc_mult * c.hc_mult),
      plain_angles(tokens, c.qk_rope_head_dim / 2),
      compressed_angles(tokens, c.qk_rope_head_dim / 2),
      q_latent(tokens, type, c.q_lora_rank),
      q_latent_quantised(tokens, type, c.q_lora_rank),
      kv(tokens, type, c.head_dim),
      q(tokens, type, c.num_attention_heads * c.head_dim),
      attended(tokens, type, c.num_attention_heads * c.head_dim),
      grouped(tokens, type, c.o_groups * c.o_lora_rank),
      compressor_latent(tokens, type, c.head_dim),
      compressor_rows(tokens, 2 * c.head_dim),
      latent(tokens, type, c.head_dim),
      index_key(tokens, type, c.index_head_dim),
      index_query(tokens, type, c.index_n_heads * c.index_head_dim),
      index_weights(tokens, type, c.index_n_heads),
      selected(tokens, c.index_topk),
      num_selected(tokens, 1),
      candidates(tokens, c.candidate_topk_blocks),
      num_candidates(tokens, 1),
      router_logits(tokens, c.n_routed_experts),
      route_weights(tokens, c.num_experts_per_tok),
      routed_experts(tokens, c.num_experts_per_tok),
      engram_rows(tokens, type, c.engram.enabled() ? c.engram.num_columns() * c.engram.head_dim : 0),
      engram_quantised(tokens, type, c.engram.enabled() ? c.engram.num_columns() * c.engram.head_dim : 0),
      engram_key_value(tokens, type, c.engram.enabled() ? (c.hc_mult + 1) * c.hidden_size : 0),
      kept_streams(kept, type, c.hc_mult * c.hidden_size),
      kept_u(kept, type, c.hidden_size),
      kept_u_quantised(kept, type, c.hidden_size),
      kept_pre(kept, c.hc_mult),
      kept_plain_angles(kept, c.qk_rope_head_dim / 2),
      kept_compressed_angles(kept, c.qk_rope_head_dim / 2),
      last_streams(outputs, type, c.hc_mult * c.hidden_size),
      last_hidden(outputs, type, c.hidden_size),
      last_pre(outputs, c.hc_mult),
      logits(outputs, c.vocab_size),
      drawn(outputs, 1) {
  group_angles.reserve(plan.group_ratios.size());
  for (size_t i = 0; i < plan.group_ratios.size(); ++i) group_angles.emplace_back(tokens, c.qk_rope_head_dim / 2);
}

}  // namespace deepinfer
