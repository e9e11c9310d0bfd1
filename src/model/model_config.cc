#include "model/model_config.h"

#include "checkpoint/json_fields.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/shown.h"
#include "model/model_config_rules.h"

namespace deepinfer {
namespace {

// Bounds far above the released model and far below what could overflow int64 in a product of sizes.
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxWidth = 1 << 20;  // any single width of a matrix
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxPositions = 1 << 24;
constexpr int64_t kMaxRatio = 128;
constexpr IntRange kWidth{1, kMaxWidth};
constexpr IntRange kOptionalTokenId{-1, kMaxVocab - 1};
constexpr IntRange kLayer{0, kMaxLayers - 1};
constexpr RealRange kAnyTheta{1, 1e12};
constexpr RealRange kEps{0, 1};

void read_real(const JsonFields& f, JsonFields::Keys keys, float* out, RealRange range) {
  double value = *out;
  f.read(keys, &value, range);
  *out = static_cast<float>(value);
}

// The key, if present, must have exactly this value: the engine computes nothing else.
void expect(const JsonFields& f, JsonFields::Keys keys, std::string_view only) {
  std::string value(only);
  f.read_if_present(keys, &value);
  if (value != only)
    f.report(
        unsupported("{} is {}, but this engine supports {} only", f.label(*keys.begin()), shown(value), shown(only)));
}

void expect(const JsonFields& f, JsonFields::Keys keys, int64_t only) {
  int64_t value = only;
  f.read_if_present(keys, &value, {0, kMaxWidth});
  if (value != only)
    f.report(unsupported("{} is {}, but this engine supports {} only", f.label(*keys.begin()), value, only));
}

void expect_false(const JsonFields& f, std::string_view key) {
  bool value = false;
  f.read_if_present({key}, &value);
  if (value) f.report(unsupported("{} is true, but this engine supports false only", f.label(key)));
}

void check_architecture(const JsonFields& root, const std::optional<JsonFields>& text) {
  if (text && !root.has({"model_type"})) root.report(invalid_input("{} is missing", root.label("model_type")));
  expect(root, {"model_type"}, "deepseek_v41");
  if (text) expect(*text, {"model_type"}, "deepseek_v41_text");
  const JsonFields& f = text ? *text : root;
  expect(f, {"hidden_act"}, "silu");
  expect(f, {"scoring_func", "score_func"}, "sqrtsoftplus");
  expect(f, {"topk_method"}, "noaux_tc");
  expect(f, {"num_key_value_heads"}, 1);
  expect(f, {"n_shared_experts"}, 1);
  expect_false(f, "attention_bias");
  expect_false(f, "tie_word_embeddings");
}

void check_quantization(const JsonFields& root, bool is_nested) {
  if (!is_nested) {  // the flat dialect has no object for it
    expect(root, {"dtype"}, "fp8");
    expect(root, {"scale_fmt"}, "ue8m0");
    expect(root, {"expert_dtype"}, "fp4");
    return;
  }
  expect(root, {"dtype", "torch_dtype"}, "bfloat16");
  const auto q = root.child("quantization_config");
  if (!q)
    return root.report(
        invalid_input("{} is missing: the weights' number formats are unknown", root.label("quantization_config")));
  for (const std::string_view key : {"quant_method", "scale_fmt", "expert_dtype", "weight_block_size"})
    if (!q->has({key})) q->report(invalid_input("{} is missing", q->label(key)));
  expect(*q, {"quant_method"}, "fp8");
  expect(*q, {"activation_scheme"}, "dynamic");
  expect(*q, {"scale_fmt"}, "ue8m0");
  expect(*q, {"expert_dtype"}, "fp4");
  std::vector<int64_t> block;
  q->read_if_present({"weight_block_size"}, &block, kWidth, 8);
  if (block != std::vector<int64_t>{32, 32})
    q->report(
        unsupported("{} is {}, but this engine supports [32, 32] only", q->label("weight_block_size"), shown(block)));
}

void read_sizes(const JsonFields& f, ModelConfig* c) {
  f.read({"vocab_size"}, &c->vocab_size, {1, kMaxVocab});
  f.read({"hidden_size", "dim"}, &c->hidden_size, kWidth);
  f.read({"num_hidden_layers", "n_layers"}, &c->num_hidden_layers, {1, kMaxLayers});
  read_real(f, {"rms_norm_eps", "norm_eps"}, &c->rms_norm_eps, kEps);
  f.read({"hc_mult"}, &c->hc_mult, {1, 64});
  f.read({"hc_sinkhorn_iters"}, &c->hc_sinkhorn_iters, {1, 1000});
  read_real(f, {"hc_eps"}, &c->hc_eps, kEps);
}

void read_attention(const JsonFields& f, ModelConfig* c) {
  f.read({"num_attention_heads", "n_heads"}, &c->num_attention_heads, {1, 4096});
  f.read({"head_dim"}, &c->head_dim, {1, 16384});
  f.read({"qk_rope_head_dim", "rope_head_dim"}, &c->qk_rope_head_dim, {2, 16384});
  f.read({"q_lora_rank"}, &c->q_lora_rank, kWidth);
  f.read({"o_groups"}, &c->o_groups, {1, 4096});
  f.read({"o_lora_rank"}, &c->o_lora_rank, kWidth);
  f.read({"sliding_window", "window_size"}, &c->sliding_window, {1, 1 << 20});
  f.read({"rope_theta"}, &c->rope_theta, kAnyTheta);
  f.read({"compress_rope_theta"}, &c->compress_rope_theta, kAnyTheta);
}

void read_rope_scaling(const JsonFields& f, bool is_nested, ModelConfig* c) {
  const auto scaling = is_nested ? f.child("rope_scaling") : std::optional<JsonFields>(f);
  const JsonFields::Keys original = {"original_max_position_embeddings", "original_seq_len"};
  if (!scaling || (!is_nested && !scaling->has(original))) return;
  RopeScaling yarn;
  if (is_nested) {
    if (!scaling->has({"rope_type", "type"}))
      return scaling->report(invalid_input("{} is missing", scaling->label("rope_type")));
    expect(*scaling, {"rope_type", "type"}, "yarn");
  }
  scaling->read(original, &yarn.original_max_position_embeddings, {is_nested ? 1 : 0, kMaxPositions});
  scaling->read({"factor", "rope_factor"}, &yarn.factor, RealRange{1, 1e6});
  scaling->read_if_present({"beta_fast"}, &yarn.beta_fast, RealRange{1e-6, 1e6});
  scaling->read_if_present({"beta_slow"}, &yarn.beta_slow, RealRange{1e-6, 1e6});
  if (yarn.beta_fast < yarn.beta_slow)
    scaling->report(invalid_input("{} is {}, expected at least beta_slow, which is {}", scaling->label("beta_fast"),
                                  yarn.beta_fast, yarn.beta_slow));
  if (yarn.original_max_position_embeddings > 0) c->rope_scaling = yarn;
}

// Without the key, YaRN's reach is the limit.
void read_max_positions(const JsonFields& f, ModelConfig* c) {
  if (!f.has({"max_position_embeddings"}) && c->rope_scaling) {
    const double reach =
        c->rope_scaling->factor * static_cast<double>(c->rope_scaling->original_max_position_embeddings);
    if (reach <= static_cast<double>(kMaxPositions)) {
      c->max_position_embeddings = static_cast<int64_t>(reach);
      return;
    }
  }
  f.read({"max_position_embeddings"}, &c->max_position_embeddings, {1, kMaxPositions});
}

void read_selection(const JsonFields& f, ModelConfig* c) {
  f.read({"compress_ratios"}, &c->compress_ratios, {0, kMaxRatio}, kMaxLayers + 64);
  f.read({"kv_source_layer_ids", "kv_source_layers"}, &c->kv_source_layer_ids, kLayer, kMaxLayers);
  f.read({"index_source_layer_ids", "index_source_layers"}, &c->index_source_layer_ids, kLayer, kMaxLayers);
  f.read({"index_n_heads"}, &c->index_n_heads, {1, 4096});
  f.read({"index_head_dim"}, &c->index_head_dim, {1, 16384});
  f.read({"index_topk"}, &c->index_topk, {1, 1 << 20});
  f.read_if_present({"candidate_source_layer_id", "candidate_source_layer"}, &c->candidate_source_layer_id,
                    IntRange{-kMaxLayers, kMaxLayers - 1});
  if (c->candidate_source_layer_id < 0) {
    c->candidate_source_layer_id = -1;
    return;
  }
  f.read({"candidate_topk_blocks"}, &c->candidate_topk_blocks, {1, 1 << 20});
  f.read({"candidate_block_size"}, &c->candidate_block_size, {1, 1 << 16});
}

void read_experts(const JsonFields& f, ModelConfig* c) {
  f.read({"moe_intermediate_size", "moe_inter_dim"}, &c->moe_intermediate_size, kWidth);
  f.read({"n_routed_experts"}, &c->n_routed_experts, {1, 16384});
  f.read({"num_experts_per_tok", "n_activated_experts"}, &c->num_experts_per_tok, {1, 1024});
  f.read_if_present({"norm_topk_prob"}, &c->norm_topk_prob);
  read_real(f, {"routed_scaling_factor", "route_scale"}, &c->routed_scaling_factor, {0, 1e6});
  read_real(f, {"swiglu_limit"}, &c->swiglu_limit, {1e-6, 1e30});
  if (f.has({"gate_temp"})) read_real(f, {"gate_temp"}, &c->gate_temp, {1e-6, 1e6});
}

void read_engram(const JsonFields& f, EngramConfig* e) {
  f.read_if_present({"engram_layer_ids"}, &e->layer_ids, kLayer, 64);
  if (!e->enabled()) return;
  f.read({"engram_num_embeddings"}, &e->num_embeddings, {1, int64_t{1} << 40}, 64);
  f.read({"engram_max_ngram_size"}, &e->max_ngram_size, {2, 8});
  f.read({"engram_n_heads"}, &e->n_heads, {1, 64});
  f.read({"engram_head_dim"}, &e->head_dim, {1, 4096});
  f.read({"engram_vocab_size"}, &e->vocab_size, {2, int64_t{1} << 31});
  f.read({"engram_pad_token_id", "engram_pad_id"}, &e->pad_token_id, {0, kMaxVocab - 1});
  f.read({"engram_compressed_vocab_size"}, &e->compressed_vocab_size, {1, kMaxVocab});
}

void read_draft(const JsonFields& f, DraftConfig* d) {
  f.read_if_present({"num_nextn_predict_layers", "n_mtp_layers"}, &d->num_stages, {0, 64});
  f.read_if_present({"dspark_block_size"}, &d->block_size, {0, 1024});
  f.read_if_present({"dspark_noise_token_id"}, &d->noise_token_id, {0, kMaxVocab - 1});
  f.read_if_present({"dspark_target_layer_ids"}, &d->target_layer_ids, kLayer, 64);
  f.read_if_present({"dspark_markov_rank"}, &d->markov_rank, {0, kMaxWidth});
  f.read_if_present({"dspark_n_routed_experts"}, &d->n_routed_experts, {0, 16384});
  f.read_if_present({"dspark_num_experts_per_tok", "dspark_n_activated_experts"}, &d->num_experts_per_tok, {0, 1024});
}

void read_root(const JsonFields& root, bool is_nested, ModelConfig* c) {
  root.read_if_present({"bos_token_id"}, &c->bos_token_id, kOptionalTokenId);
  root.read_one_or_more_if_present({"eos_token_id"}, &c->eos_token_ids, {0, kMaxVocab - 1}, 64);
  root.read_if_present({"pad_token_id"}, &c->pad_token_id, kOptionalTokenId);
  root.read_if_present({"image_token_id"}, &c->image_token_id, kOptionalTokenId);
  if (is_nested) {
    c->has_vision = root.child("vision_config").has_value();
  } else {
    int64_t vision_layers = 0;
    root.read_if_present({"vision_n_layers"}, &vision_layers, {0, kMaxLayers});
    c->has_vision = vision_layers > 0;
  }
}

}  // namespace

Result<ModelConfig> ModelConfig::from_json(std::string_view file_name, std::string_view text) {
  DI_ASSIGN_OR_RETURN(const JsonFields root, JsonFields::parse(file_name, text));
  const auto nested = root.child("text_config");
  const JsonFields& fields = nested ? *nested : root;
  ModelConfig config;
  check_architecture(root, nested);
  check_quantization(root, nested.has_value());
  read_root(root, nested.has_value(), &config);
  read_sizes(fields, &config);
  read_attention(fields, &config);
  read_rope_scaling(fields, nested.has_value(), &config);
  read_max_positions(fields, &config);
  read_selection(fields, &config);
  read_experts(fields, &config);
  read_engram(fields, &config.engram);
  read_draft(fields, &config.draft);
  Status status = fields.take_status();
  if (status.ok()) status = check_model_config(config).with_context(std::string(file_name));
  if (!status.ok())
    return Status(status.code(), status.message() + "; use the config.json that belongs to the checkpoint");
  return config;
}

Result<ModelConfig> ModelConfig::from_file(const std::string& path) {
  DI_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  return from_json(path, file.text());
}

}  // namespace deepinfer
