#include "model/weights.h"

#include <string>

#include "model/weight_binder.h"

namespace deepinfer {
namespace {

// Binds the tensors of one layer; every method is one part of it.
class LayerBinder {
 public:
  LayerBinder(WeightBinder& binder, const ModelConfig& config, const LayerRole& role, int layer)
      : binder_(binder), config_(config), role_(role), prefix_("layers." + std::to_string(layer) + ".") {}

  Status mhc(const std::string& name, MhcWeights& out) {
    const int64_t outputs = config_.hc_mult * (config_.hc_mult + 2);
    DI_RETURN_IF_ERROR(binder_.f32(prefix_ + name + "_fn", outputs, config_.hc_mult * config_.hidden_size, out.fn));
    DI_RETURN_IF_ERROR(binder_.floats(prefix_ + name + "_scale", {3}, out.scale));
    return binder_.floats(prefix_ + name + "_base", {outputs}, out.base);
  }

  Status attention(AttentionWeights& out) {
    const ModelConfig& c = config_;
    const std::string p = prefix_ + "attn.";
    const int64_t head_values = c.num_attention_heads * c.head_dim;
    DI_RETURN_IF_ERROR(binder_.floats(prefix_ + "attn_norm.weight", {c.hidden_size}, out.norm));
    DI_RETURN_IF_ERROR(binder_.floats(p + "attn_sink", {c.num_attention_heads}, out.sink));
    DI_RETURN_IF_ERROR(binder_.fp8(p + "wq_a", c.q_lora_rank, c.hidden_size, out.wq_a));
    DI_RETURN_IF_ERROR(binder_.floats(p + "q_norm.weight", {c.q_lora_rank}, out.q_norm));
    DI_RETURN_IF_ERROR(binder_.fp8(p + "wq_b", head_values, c.q_lora_rank, out.wq_b));
    DI_RETURN_IF_ERROR(binder_.fp8(p + "wkv", c.head_dim, c.hidden_size, out.wkv));
    DI_RETURN_IF_ERROR(binder_.floats(p + "kv_norm.weight", {c.head_dim}, out.kv_norm));
    DI_RETURN_IF_ERROR(
        binder_.fp8_parts(p + "wo_a", c.o_groups * c.o_lora_rank, head_values / c.o_groups, c.o_groups, out.wo_a));
    DI_RETURN_IF_ERROR(binder_.fp8(p + "wo_b", c.hidden_size, c.o_groups * c.o_lora_rank, out.wo_b));
    if (role_.is_kv_source) DI_RETURN_IF_ERROR(compressor(p, out.compressor.emplace()));
    if (role_.is_index_source) DI_RETURN_IF_ERROR(indexer(p, out.indexer.emplace()));
    return Status();
  }

  Status moe(MoeWeights& out) {
    const ModelConfig& c = config_;
    const std::string p = prefix_ + "ffn.";
    DI_RETURN_IF_ERROR(binder_.floats(prefix_ + "ffn_norm.weight", {c.hidden_size}, out.norm));
    DI_RETURN_IF_ERROR(binder_.bf16(p + "gate.weight", c.n_routed_experts, c.hidden_size, out.gate));
    DI_RETURN_IF_ERROR(binder_.floats(p + "gate.bias", {c.n_routed_experts}, out.bias));
    std::vector<ops::ExpertWeights>& routed = out.experts.routed;
    routed.resize(c.n_routed_experts);
    const int64_t inner = c.moe_intermediate_size;
    for (int64_t e = 0; e < c.n_routed_experts; ++e) {
      const std::string expert = p + "experts." + std::to_string(e) + ".";
      DI_RETURN_IF_ERROR(binder_.mxfp4(expert + "w1", inner, c.hidden_size, routed[e].w1));
      DI_RETURN_IF_ERROR(binder_.mxfp4(expert + "w2", c.hidden_size, inner, routed[e].w2));
      DI_RETURN_IF_ERROR(binder_.mxfp4(expert + "w3", inner, c.hidden_size, routed[e].w3));
    }
    DI_RETURN_IF_ERROR(binder_.fp8(p + "shared_experts.w1", inner, c.hidden_size, out.experts.shared.w1));
    DI_RETURN_IF_ERROR(binder_.fp8(p + "shared_experts.w2", c.hidden_size, inner, out.experts.shared.w2));
    DI_RETURN_IF_ERROR(binder_.fp8(p + "shared_experts.w3", inner, c.hidden_size, out.experts.shared.w3));
    binder_.prepare(out.experts);
    return Status();
  }

  Status engram(int64_t cache_rows, EngramWeights& out) {
    const ModelConfig& c = config_;
    const EngramConfig& e = c.engram;
    const std::string p = prefix_ + "engram.";
    const int64_t num_rows = e.num_embeddings[role_.engram_table];
    const StoredTensor* rows = nullptr;
    const StoredTensor* scales = nullptr;
    DI_RETURN_IF_ERROR(binder_.mapped(p + "embed.weight", DType::kF8E4m3, {num_rows, e.head_dim}, rows));
    DI_RETURN_IF_ERROR(binder_.mapped(p + "embed.scale", DType::kF8E8m0, {num_rows, e.head_dim / 32}, scales));
    DI_RETURN_IF_ERROR(binder_.fp8(p + "wkv", (c.hc_mult + 1) * c.hidden_size, e.num_columns() * e.head_dim, out.wkv));
    std::vector<float> query, key;
    DI_RETURN_IF_ERROR(binder_.host_floats(p + "q_weight", {c.hc_mult, c.hidden_size}, query));
    DI_RETURN_IF_ERROR(binder_.host_floats(p + "k_weight", {c.hc_mult, c.hidden_size}, key));
    for (size_t i = 0; i < key.size(); ++i) query[i] *= key[i];
    DI_RETURN_IF_ERROR(binder_.upload(query, out.query_key));
    DI_ASSIGN_OR_RETURN(out.table, EngramTable::create(*rows, *scales, cache_rows));
    return Status();
  }

 private:
  Status compressor(const std::string& p, CompressorWeights& out) {
    const ModelConfig& c = config_;
    DI_RETURN_IF_ERROR(binder_.bf16(p + "compressor.wkv.weight", c.head_dim, c.hidden_size, out.wkv));
    if (role_.compress_ratio > 1) {
      DI_RETURN_IF_ERROR(binder_.bf16(p + "compressor.wgate.weight", c.head_dim, c.hidden_size, out.wgate.emplace()));
    }
    DI_RETURN_IF_ERROR(binder_.floats(p + "compressor.norm.weight", {c.head_dim}, out.norm));
    DI_RETURN_IF_ERROR(binder_.bf16(p + "indexer.wk.weight", c.index_head_dim, c.head_dim, out.index_wk));
    return binder_.floats(p + "indexer.k_norm.weight", {c.index_head_dim}, out.index_k_norm);
  }

  Status indexer(const std::string& p, IndexerWeights& out) {
    const ModelConfig& c = config_;
    DI_RETURN_IF_ERROR(binder_.fp8(p + "indexer.wq_b", c.index_n_heads * c.index_head_dim, c.q_lora_rank, out.wq_b));
    return binder_.bf16(p + "indexer.weights_proj.weight", c.index_n_heads, c.hidden_size, out.weights_proj);
  }

  WeightBinder& binder_;
  const ModelConfig& config_;
  const LayerRole& role_;
  std::string prefix_;
};

// What load_weights reads as a whole: the backbone without the tables and the embedding, which stay in the file.
uint64_t bytes_to_load(const Checkpoint& checkpoint) {
  uint64_t total = 0;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    const bool in_layer = tensor.name.starts_with("layers.") && tensor.name.find(".engram.embed.") == std::string::npos;
    if (in_layer || tensor.name == "head.weight") total += tensor.bytes;
  }
  return total;
}

}  // namespace

Result<ModelWeights> load_weights(Device& device, Stream& stream, const Checkpoint& checkpoint,
                                  const ModelConfig& config, const LayerPlan& plan, int64_t engram_cache_rows,
                                  const LoadProgress& progress) {
  if (config.o_lora_rank % 32 != 0 && config.o_groups > 1) {
    return unsupported("o_lora_rank {}: must be a multiple of 32, so that the groups of wo_a do not share a scale tile",
                       config.o_lora_rank);
  }
  WeightBinder binder(device, stream, checkpoint, bytes_to_load(checkpoint), progress);
  ModelWeights weights;
  const StoredTensor* embed = nullptr;
  DI_RETURN_IF_ERROR(binder.find("embed.weight", DType::kBf16, {config.vocab_size, config.hidden_size}, embed));
  DI_ASSIGN_OR_RETURN(weights.embed, device.make_resident(embed->contents()));
  DI_RETURN_IF_ERROR(binder.floats("norm.weight", {config.hidden_size}, weights.norm));
  weights.layers.resize(plan.layers.size());
  for (size_t l = 0; l < plan.layers.size(); ++l) {
    LayerBinder layer(binder, config, plan.layers[l], static_cast<int>(l));
    LayerWeights& out = weights.layers[l];
    DI_RETURN_IF_ERROR(layer.mhc("hc_attn", out.attention_mhc));
    DI_RETURN_IF_ERROR(layer.attention(out.attention));
    DI_RETURN_IF_ERROR(layer.mhc("hc_ffn", out.ffn_mhc));
    DI_RETURN_IF_ERROR(layer.moe(out.moe));
    if (plan.layers[l].engram_table >= 0) DI_RETURN_IF_ERROR(layer.engram(engram_cache_rows, out.engram.emplace()));
  }
  DI_RETURN_IF_ERROR(binder.bf16("head.weight", config.vocab_size, config.hidden_size, weights.head));
  DI_RETURN_IF_ERROR(stream.synchronize());
  return weights;
}

}  // namespace deepinfer
