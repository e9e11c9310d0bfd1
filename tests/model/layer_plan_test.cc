#include "model/layer_plan.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

// The lists of the released model; sizes play no part in the plan.
ModelConfig released_lists() {
  ModelConfig config;
  config.num_hidden_layers = 40;
  config.compress_ratios = {0, 0};
  config.compress_ratios.insert(config.compress_ratios.end(), 18, 2);
  config.compress_ratios.insert(config.compress_ratios.end(), 20, 1);
  config.compress_ratios.insert(config.compress_ratios.end(), 3, 0);
  config.kv_source_layer_ids = {2, 8, 14, 20};
  config.index_source_layer_ids = {2, 8, 14, 20, 24, 28, 32, 36};
  config.candidate_source_layer_id = 20;
  config.engram.layer_ids = {1, 14};
  return config;
}

TEST(LayerPlan, GivesTheReleasedModelItsRoles) {
  const auto plan = LayerPlan::make(released_lists());
  ASSERT_EQ(plan.layers.size(), 40u);
  for (int layer = 0; layer < 40; ++layer) {
    const LayerRole& role = plan.layers[layer];
    const int kv = layer < 2 ? -1 : layer < 8 ? 2 : layer < 14 ? 8 : layer < 20 ? 14 : 20;
    const int index = layer < 20 ? kv : layer / 4 * 4;
    EXPECT_EQ(role.compress_ratio, layer < 2 ? 0 : layer < 20 ? 2 : 1) << layer;
    EXPECT_EQ(role.kv_source, kv) << layer;
    EXPECT_EQ(role.is_kv_source, layer == kv) << layer;
    EXPECT_EQ(role.index_source, index) << layer;
    EXPECT_EQ(role.is_index_source, layer == index) << layer;
    EXPECT_EQ(role.is_candidate_source, layer == 20) << layer;
    EXPECT_EQ(role.uses_candidates, layer == 24 || layer == 28 || layer == 32 || layer == 36) << layer;
    EXPECT_EQ(role.engram_table, layer == 1 ? 0 : layer == 14 ? 1 : -1) << layer;
    EXPECT_EQ(role.rope == RopeKind::kPlain, layer < 2) << layer;
  }
  EXPECT_EQ(plan.first_decoder_layer, 20);
}

TEST(LayerPlan, ALayerWithoutCompressionHasNoSourcesWhereverItStands) {
  ModelConfig config = released_lists();
  config.compress_ratios[39] = 0;
  const auto role = LayerPlan::make(config).layers[39];
  EXPECT_EQ(role.kv_source, -1);
  EXPECT_EQ(role.index_source, -1);
  EXPECT_EQ(role.rope, RopeKind::kPlain);
}

TEST(LayerPlan, WithoutACandidateSourceNoLayerUsesCandidates) {
  ModelConfig config = released_lists();
  config.candidate_source_layer_id = -1;
  for (const LayerRole& role : LayerPlan::make(config).layers) {
    EXPECT_FALSE(role.is_candidate_source);
    EXPECT_FALSE(role.uses_candidates);
  }
}

TEST(LayerPlan, HasNoDecoderIfTheLastKvSourceIsCompressedOrEngramFollowsIt) {
  ModelConfig engram_late = released_lists();
  engram_late.engram.layer_ids = {1, 21};
  EXPECT_EQ(LayerPlan::make(engram_late).first_decoder_layer, -1);

  ModelConfig engram_at_cut = released_lists();
  engram_at_cut.engram.layer_ids = {1, 20};
  EXPECT_EQ(LayerPlan::make(engram_at_cut).first_decoder_layer, 20);

  ModelConfig compressed = released_lists();
  compressed.num_hidden_layers = 20;
  compressed.kv_source_layer_ids = {2, 8, 14};
  compressed.index_source_layer_ids = {2, 8, 14};
  compressed.candidate_source_layer_id = -1;
  EXPECT_EQ(LayerPlan::make(compressed).first_decoder_layer, -1);

  ModelConfig window_only;
  window_only.num_hidden_layers = 3;
  window_only.compress_ratios = {0, 0, 0};
  EXPECT_EQ(LayerPlan::make(window_only).first_decoder_layer, -1);
}

}  // namespace
}  // namespace deepinfer
