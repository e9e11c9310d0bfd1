#include "model/model_config.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace deepinfer {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string golden_path(const std::string& model) {
  return std::string(DEEPINFER_TESTS_DIR) + "/golden/model/" + model + "/config.json";
}

Json golden(const std::string& model) {
  std::ifstream file(golden_path(model));
  return Json::parse(file);
}

Json released() {
  std::vector<int> ratios = {0, 0};
  ratios.insert(ratios.end(), 18, 2);
  ratios.insert(ratios.end(), 20, 1);
  ratios.insert(ratios.end(), 3, 0);
  Json json = golden("tiny_full");
  json["image_token_id"] = 129264;
  json["vision_config"] = {{"model_type", "deepseek_v41_vision"}, {"max_wh_ratio", nullptr}};
  const Json changes = {{"vocab_size", 129280},
                        {"hidden_size", 5120},
                        {"num_hidden_layers", 40},
                        {"num_attention_heads", 64},
                        {"head_dim", 512},
                        {"qk_rope_head_dim", 64},
                        {"q_lora_rank", 1280},
                        {"o_groups", 8},
                        {"o_lora_rank", 1024},
                        {"max_position_embeddings", 1048576},
                        {"sliding_window", 128},
                        {"compress_ratios", ratios},
                        {"kv_source_layer_ids", {2, 8, 14, 20}},
                        {"index_source_layer_ids", {2, 8, 14, 20, 24, 28, 32, 36}},
                        {"candidate_source_layer_id", 20},
                        {"candidate_topk_blocks", 2048},
                        {"candidate_block_size", 8},
                        {"index_n_heads", 32},
                        {"index_head_dim", 128},
                        {"index_topk", 512},
                        {"moe_intermediate_size", 2304},
                        {"n_routed_experts", 384},
                        {"num_experts_per_tok", 6},
                        {"topk_method", "noaux_tc"},
                        {"engram_layer_ids", {1, 14}},
                        {"engram_num_embeddings", {384006168, 384016682}},
                        {"engram_n_heads", 8},
                        {"engram_head_dim", 256},
                        {"engram_vocab_size", 16000000},
                        {"engram_compressed_vocab_size", 99092},
                        {"num_nextn_predict_layers", 3},
                        {"dspark_block_size", 5},
                        {"dspark_noise_token_id", 128799},
                        {"dspark_target_layer_ids", {37, 38, 39}},
                        {"dspark_markov_rank", 256},
                        {"dspark_n_routed_experts", 128},
                        {"dspark_num_experts_per_tok", 3}};
  json["text_config"].update(changes);
  json["text_config"]["rope_scaling"]["original_max_position_embeddings"] = 65536;
  return json;
}

Result<ModelConfig> parse(const Json& json) { return ModelConfig::from_json("config.json", json.dump()); }

ModelConfig parse_ok(const Json& json) {
  auto result = parse(json);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return std::move(result).value();
}

TEST(ModelConfig, ReadsTheReleasedSizes) {
  const auto c = parse_ok(released());
  EXPECT_EQ(c.vocab_size, 129280);
  EXPECT_EQ(c.hidden_size, 5120);
  EXPECT_EQ(c.rms_norm_eps, 1e-20f);
  EXPECT_EQ(c.compress_ratios.size(), 43u);
  EXPECT_THAT(c.kv_source_layer_ids, ElementsAre(2, 8, 14, 20));
  EXPECT_EQ(c.candidate_source_layer_id, 20);
  EXPECT_EQ(c.rope_theta, 10000);
  EXPECT_EQ(c.compress_rope_theta, 160000);
  ASSERT_TRUE(c.rope_scaling.has_value());
  EXPECT_EQ(c.rope_scaling->factor, 16);
  EXPECT_EQ(c.rope_scaling->original_max_position_embeddings, 65536);
  EXPECT_EQ(c.engram.num_columns(), 24);
  EXPECT_EQ(c.draft.num_stages, 3);
  EXPECT_THAT(c.draft.target_layer_ids, ElementsAre(37, 38, 39));
  EXPECT_TRUE(c.has_vision);
  EXPECT_EQ(c.gate_temp, 1.0f);
  EXPECT_THAT(c.eos_token_ids, ElementsAre(1));
  EXPECT_EQ(c.image_token_id, 129264);
}

TEST(ModelConfig, ReadsEveryGoldenModel) {
  for (const char* model : {"tiny_full", "tiny_noengram", "tiny_smooth"}) {
    const auto result = ModelConfig::from_file(golden_path(model));
    EXPECT_TRUE(result.ok()) << model << ": " << result.status().message();
  }
  const auto config = ModelConfig::from_file(golden_path("tiny_noengram")).value();
  EXPECT_FALSE(config.engram.enabled());
  EXPECT_EQ(config.candidate_source_layer_id, -1);
  EXPECT_FALSE(config.has_vision);
  EXPECT_EQ(config.draft.num_stages, 0);
}

TEST(ModelConfig, OptionalPartsMayBeMissing) {
  Json json = golden("tiny_full");
  Json& text = json["text_config"];
  for (const char* key :
       {"rope_scaling", "engram_layer_ids", "engram_num_embeddings", "engram_head_dim", "candidate_source_layer_id",
        "candidate_topk_blocks", "candidate_block_size", "norm_topk_prob"})
    text.erase(key);
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id", "image_token_id"}) json.erase(key);
  const auto c = parse_ok(json);
  EXPECT_FALSE(c.rope_scaling.has_value());
  EXPECT_FALSE(c.engram.enabled());
  EXPECT_EQ(c.candidate_source_layer_id, -1);
  EXPECT_TRUE(c.norm_topk_prob);
  EXPECT_EQ(c.bos_token_id, -1);
  EXPECT_THAT(c.eos_token_ids, IsEmpty());
}

TEST(ModelConfig, TheFlatDialectGivesTheSameValues) {
  const std::pair<const char*, const char*> renamed[] = {{"hidden_size", "dim"},
                                                         {"moe_intermediate_size", "moe_inter_dim"},
                                                         {"num_hidden_layers", "n_layers"},
                                                         {"num_nextn_predict_layers", "n_mtp_layers"},
                                                         {"num_attention_heads", "n_heads"},
                                                         {"scoring_func", "score_func"},
                                                         {"routed_scaling_factor", "route_scale"},
                                                         {"qk_rope_head_dim", "rope_head_dim"},
                                                         {"rms_norm_eps", "norm_eps"},
                                                         {"sliding_window", "window_size"},
                                                         {"kv_source_layer_ids", "kv_source_layers"},
                                                         {"index_source_layer_ids", "index_source_layers"},
                                                         {"candidate_source_layer_id", "candidate_source_layer"},
                                                         {"num_experts_per_tok", "n_activated_experts"},
                                                         {"engram_pad_token_id", "engram_pad_id"},
                                                         {"dspark_num_experts_per_tok", "dspark_n_activated_experts"}};
  const Json nested = released();
  Json flat = nested["text_config"];
  for (const auto& [from, to] : renamed) {
    flat[to] = flat[from];
    flat.erase(from);
  }
  for (const char* key : {"model_type", "rope_scaling", "max_position_embeddings", "topk_method"}) flat.erase(key);
  flat.update({{"original_seq_len", 65536},
               {"rope_factor", 16},
               {"beta_fast", 32},
               {"beta_slow", 1},
               {"dtype", "fp8"},
               {"expert_dtype", "fp4"},
               {"vision_n_layers", 32}});
  const auto a = parse_ok(nested), b = parse_ok(flat);
  EXPECT_EQ(a.hidden_size, b.hidden_size);
  EXPECT_EQ(a.moe_intermediate_size, b.moe_intermediate_size);
  EXPECT_EQ(a.num_hidden_layers, b.num_hidden_layers);
  EXPECT_EQ(a.draft.num_stages, b.draft.num_stages);
  EXPECT_EQ(a.num_attention_heads, b.num_attention_heads);
  EXPECT_EQ(a.routed_scaling_factor, b.routed_scaling_factor);
  EXPECT_EQ(a.qk_rope_head_dim, b.qk_rope_head_dim);
  EXPECT_EQ(a.rms_norm_eps, b.rms_norm_eps);
  EXPECT_EQ(a.sliding_window, b.sliding_window);
  EXPECT_EQ(a.kv_source_layer_ids, b.kv_source_layer_ids);
  EXPECT_EQ(a.index_source_layer_ids, b.index_source_layer_ids);
  EXPECT_EQ(a.candidate_source_layer_id, b.candidate_source_layer_id);
  EXPECT_EQ(a.num_experts_per_tok, b.num_experts_per_tok);
  EXPECT_EQ(a.engram.pad_token_id, b.engram.pad_token_id);
  EXPECT_EQ(a.draft.num_experts_per_tok, b.draft.num_experts_per_tok);
  EXPECT_EQ(a.max_position_embeddings, b.max_position_embeddings);  // from YaRN's reach in the flat file
  ASSERT_TRUE(b.rope_scaling.has_value());
  EXPECT_EQ(a.rope_scaling->factor, b.rope_scaling->factor);
  EXPECT_TRUE(b.has_vision);
}

TEST(ModelConfig, EosMayBeAListAndUnknownKeysAreIgnored) {
  Json json = golden("tiny_full");
  json["eos_token_id"] = {1, 7};
  json["transformers_version"] = "9.9";
  json["text_config"]["something_new"] = {{"a", 1}};
  EXPECT_THAT(parse_ok(json).eos_token_ids, ElementsAre(1, 7));
}

TEST(ModelConfig, AGeneralModelWithOddWindowAndRatioThreeIsAccepted) {
  Json json = golden("tiny_noengram");
  json["text_config"].update({{"num_hidden_layers", 4},
                              {"sliding_window", 5},
                              {"compress_ratios", {0, 3, 3, 1}},
                              {"kv_source_layer_ids", {1, 3}},
                              {"index_source_layer_ids", {1, 3}},
                              {"hc_mult", 2}});
  EXPECT_EQ(parse_ok(json).hc_mult, 2);
}

struct BadConfig {
  const char* what;
  std::function<void(Json&)> change;
  std::vector<const char*> fragments;
};

// Sets a key of text_config, or of the root if `key` starts with '/'.
std::function<void(Json&)> set(const std::string& key, const Json& value) {
  return [=](Json& json) { (key[0] == '/' ? json[Json::json_pointer(key)] : json["text_config"][key]) = value; };
}
std::function<void(Json&)> erase(const std::string& key) {
  return [=](Json& json) { json["text_config"].erase(key); };
}

const std::vector<BadConfig>& bad_configs() {
  static const std::vector<BadConfig> cases = {
      {"another model", set("/model_type", "llama"), {"model_type", "\"llama\"", "deepseek_v41"}},
      {"no model type", [](Json& j) { j.erase("model_type"); }, {"model_type is missing"}},
      {"another text model", set("model_type", "x"), {"text_config.model_type", "deepseek_v41_text"}},
      {"another score", set("scoring_func", "sigmoid"), {"text_config.scoring_func", "sigmoid", "sqrtsoftplus"}},
      {"another top-k", set("topk_method", "greedy"), {"topk_method", "noaux_tc"}},
      {"another activation", set("hidden_act", "gelu"), {"hidden_act", "silu"}},
      {"biases", set("attention_bias", true), {"attention_bias is true"}},
      {"tied embeddings", set("tie_word_embeddings", true), {"tie_word_embeddings is true"}},
      {"several KV heads", set("num_key_value_heads", 8), {"num_key_value_heads is 8", "1 only"}},
      {"two shared experts", set("n_shared_experts", 2), {"n_shared_experts is 2"}},
      {"another rope",
       set("rope_scaling", {{"rope_type", "linear"}, {"factor", 2}, {"original_max_position_embeddings", 64}}),
       {"rope_scaling.rope_type", "linear", "yarn"}},
      {"rope without a type", set("rope_scaling", {{"factor", 2}}), {"rope_scaling.rope_type is missing"}},
      {"rope not an object", set("rope_scaling", 3), {"rope_scaling is 3", "expected an object"}},
      {"no quantization", [](Json& j) { j.erase("quantization_config"); }, {"quantization_config is missing"}},
      {"another quantization", set("/quantization_config/quant_method", "awq"), {"quant_method", "awq", "fp8"}},
      {"another scale format", set("/quantization_config/scale_fmt", "float"), {"scale_fmt", "ue8m0"}},
      {"another block",
       set("/quantization_config/weight_block_size", {128, 128}),
       {"weight_block_size", "[128, 128]", "[32, 32]"}},
      {"another expert type", set("/quantization_config/expert_dtype", "int4"), {"expert_dtype", "fp4"}},
      {"a missing size", erase("hidden_size"), {"text_config.hidden_size is missing"}},
      {"a size of the wrong type", set("hidden_size", "128"), {"hidden_size", "expected an integer"}},
      {"a real size", set("hidden_size", 128.5), {"hidden_size", "128.5", "expected an integer"}},
      {"a negative size", set("hidden_size", -128), {"hidden_size", "-128", "from 1 to"}},
      {"an absurd size", set("hidden_size", int64_t{1} << 62), {"hidden_size", "from 1 to 1048576"}},
      {"an unaligned width", set("hidden_size", 100), {"hidden_size is 100", "multiple of 32"}},
      {"an unaligned rank", set("q_lora_rank", 65), {"q_lora_rank is 65", "multiple of 32"}},
      {"an unaligned head", set("head_dim", 48), {"head_dim is 48", "multiple of 32"}},
      {"an unaligned expert", set("moe_intermediate_size", 65), {"moe_intermediate_size is 65"}},
      {"an unaligned index head", set("index_head_dim", 33), {"index_head_dim is 33"}},
      {"an unaligned output rank", set("o_lora_rank", 31), {"o_groups * o_lora_rank is 62"}},
      {"groups that do not divide", set("o_groups", 3), {"o_groups"}},
      {"heads that groups do not divide", set("num_attention_heads", 5), {"num_attention_heads is 5", "o_groups", "2"}},
      {"an odd rope", set("qk_rope_head_dim", 15), {"qk_rope_head_dim is 15", "even"}},
      {"a rope over the index head", set("qk_rope_head_dim", 48), {"qk_rope_head_dim is 48", "index_head_dim (32)"}},
      {"more experts a token than there are",
       set("num_experts_per_tok", 9),
       {"num_experts_per_tok is 9", "n_routed_experts", "8"}},
      {"too few ratios", set("compress_ratios", {0, 2}), {"compress_ratios has 2 entries", "8"}},
      {"a negative ratio", set("compress_ratios", {0, -2, 2, 2, 1, 1, 1, 1}), {"compress_ratios has", "-2", "entry 1"}},
      {"an absurd ratio", set("compress_ratios", {0, 999999, 2, 2, 1, 1, 1, 1}), {"compress_ratios", "999999"}},
      {"a ratio unlike its source's",
       set("compress_ratios", {0, 2, 1, 2, 1, 1, 1, 1}),
       {"compress_ratios[2] is 1", "expected 2", "layer 1"}},
      {"a ratio before any source",
       set("compress_ratios", {2, 2, 2, 2, 1, 1, 1, 1}),
       {"compress_ratios[0] is 2", "kv_source_layer_ids"}},
      {"a source without ratio",
       set("compress_ratios", {0, 0, 0, 2, 1, 1, 1, 1}),
       {"compress_ratios[1] is 0", "kv_source_layer_ids"}},
      {"a source outside of the model",
       set("kv_source_layer_ids", {1, 3, 8}),
       {"kv_source_layer_ids names layer 8", "8"}},
      {"sources out of order",
       set("kv_source_layer_ids", {3, 1, 4}),
       {"kv_source_layer_ids is [3, 1, 4]", "ascending"}},
      {"a source twice", set("index_source_layer_ids", {1, 1, 3, 4}), {"index_source_layer_ids", "without repetition"}},
      {"a KV source without index",
       set("index_source_layer_ids", {1, 4, 6}),
       {"layer 3", "index_source_layer_ids does not"}},
      {"a candidate source without index",
       set("candidate_source_layer_id", 5),
       {"candidate_source_layer_id is 5", "[1, 3, 4, 6]"}},
      {"a KV source after the candidates",
       set("candidate_source_layer_id", 3),
       {"candidate_source_layer_id is 3", "KV source 4"}},
      {"a candidate pool below top-k",
       set("candidate_topk_blocks", 3),
       {"candidate_topk_blocks 3", "5 rows", "index_topk", "6"}},
      {"a table size that is not the primes' sum",
       set("engram_num_embeddings", {630, 835}),
       {"engram_num_embeddings[1] is 835", "expected 834"}},
      {"a missing table size", set("engram_num_embeddings", {630}), {"engram_num_embeddings has 1 entries", "2"}},
      {"an Engram layer outside of the model", set("engram_layer_ids", {1, 9}), {"engram_layer_ids names layer 9"}},
      {"an unaligned Engram row", set("engram_head_dim", 40), {"engram_head_dim is 40", "multiple of 32"}},
      {"an Engram vocabulary over the vocabulary",
       set("engram_compressed_vocab_size", 257),
       {"engram_compressed_vocab_size is 257"}},
      {"an Engram pad outside of the vocabulary", set("engram_pad_token_id", 256), {"engram_pad_token_id is 256"}},
      {"a missing Engram size", erase("engram_n_heads"), {"engram_n_heads is missing"}},
      {"an end token outside of the vocabulary", set("/eos_token_id", 256), {"eos_token_id is 256", "vocab_size"}},
      {"an image token outside of the vocabulary", set("/image_token_id", 300), {"image_token_id is 300"}},
      {"a text_config that is no object",
       set("/text_config", Json::array({1})),
       {"text_config is an array", "expected an object"}},
      {"a negative eps", set("rms_norm_eps", -1.0), {"rms_norm_eps", "from 0 to 1"}},
      {"no residual stream", set("hc_mult", 0), {"hc_mult", "from 1 to 64"}},
      {"no positions", set("max_position_embeddings", 0), {"max_position_embeddings"}},
  };
  return cases;
}

TEST(ModelConfig, NamesTheKeyTheValueAndTheRemedyOfEveryProblem) {
  for (const BadConfig& bad : bad_configs()) {
    SCOPED_TRACE(bad.what);
    Json json = golden("tiny_full");
    bad.change(json);
    const auto result = parse(json);
    ASSERT_FALSE(result.ok());
    const std::string& message = result.status().message();
    EXPECT_THAT(message, HasSubstr("config.json"));
    EXPECT_THAT(message, HasSubstr("use the config.json that belongs to the checkpoint"));
    for (const char* fragment : bad.fragments) EXPECT_THAT(message, HasSubstr(fragment));
  }
}

TEST(ModelConfig, NamesWhatIsWrongWithTheText) {
  const std::pair<const char*, const char*> cases[] = {{"", "not valid JSON"},
                                                       {"{", "not valid JSON"},
                                                       {"[1]", "not a JSON object"},
                                                       {"{\"a\": 1, \"a\": 2}", "the key a appears twice"},
                                                       {"\xff", "not valid JSON"}};
  for (const auto& [text, fragment] : cases) {
    const auto result = ModelConfig::from_json("dir/config.json", text);
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_THAT(result.status().message(), testing::AllOf(HasSubstr("dir/config.json"), HasSubstr(fragment)));
  }
}

TEST(ModelConfig, AMissingFileIsNamed) {
  const auto result = ModelConfig::from_file("/nonexistent/config.json");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), ErrorCode::kNotFound);
  EXPECT_THAT(result.status().message(), HasSubstr("/nonexistent/config.json does not exist"));
}

}  // namespace
}  // namespace deepinfer
