#include "checkpoint/inventory.h"

#include <gtest/gtest.h>

#include "checkpoint/temp_folder.h"

namespace deepinfer {
namespace {

TEST(Inventory, KnowsEveryKindOfTensorByItsName) {
  const std::pair<const char*, TensorKind> cases[] = {
      {"embed.weight", TensorKind::kEmbedding},
      {"head.weight", TensorKind::kHead},
      {"norm.weight", TensorKind::kNorm},
      {"layers.0.attn_norm.weight", TensorKind::kNorm},
      {"layers.39.ffn_norm.weight", TensorKind::kNorm},
      {"layers.3.hc_attn_fn", TensorKind::kMhc},
      {"layers.3.hc_ffn_scale", TensorKind::kMhc},
      {"layers.3.attn.attn_sink", TensorKind::kAttention},
      {"layers.3.attn.wq_a.weight", TensorKind::kAttention},
      {"layers.3.attn.kv_norm.weight", TensorKind::kAttention},
      {"layers.2.attn.compressor.wkv.weight", TensorKind::kCompressorAndIndexer},
      {"layers.2.attn.indexer.wq_b.scale", TensorKind::kCompressorAndIndexer},
      {"layers.2.ffn.gate.weight", TensorKind::kRouter},
      {"layers.2.ffn.gate.bias_vl", TensorKind::kRouter},
      {"layers.2.ffn.experts.383.w1.scale", TensorKind::kExperts},
      {"layers.2.ffn.shared_experts.w2.weight", TensorKind::kSharedExperts},
      {"layers.14.engram.embed.scale", TensorKind::kEngramTable},
      {"layers.14.engram.wkv.weight", TensorKind::kEngramProjection},
      {"layers.14.engram.q_weight", TensorKind::kEngramProjection},
      {"mtp.0.ffn.experts.1.w1.weight", TensorKind::kDraft},
      {"vision.blocks.0.norm1.weight", TensorKind::kVision},
      {"aligner.w1.bias", TensorKind::kVision},
      {"image_start", TensorKind::kVision},
      {"something", TensorKind::kOther},
      {"layers.x.attn.wq_a.weight", TensorKind::kOther},
      {"layers.99999999999999999999.attn.wq_a.weight", TensorKind::kOther},
      {"layers.-1.attn.wq_a.weight", TensorKind::kOther},
      {"layers.1", TensorKind::kOther},
      {"layers.1.unknown", TensorKind::kOther},
      {"", TensorKind::kOther},
  };
  for (const auto& [name, kind] : cases) EXPECT_EQ(kind_of_tensor(name), kind) << name;
}

TEST(Inventory, EveryKindHasItsOwnName) {
  std::string_view previous;
  for (int kind = 0; kind < kNumTensorKinds; ++kind) {
    EXPECT_FALSE(name_of(static_cast<TensorKind>(kind)).empty());
    EXPECT_NE(name_of(static_cast<TensorKind>(kind)), previous);
    previous = name_of(static_cast<TensorKind>(kind));
  }
}

TEST(Inventory, AccountsForEveryByteOfAGoldenModel) {
  const auto checkpoint = Checkpoint::open(std::string(DEEPINFER_TESTS_DIR) + "/golden/model/tiny_full");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  const Inventory inventory = take_inventory(*checkpoint);
  EXPECT_EQ(inventory.total.bytes, checkpoint->total_bytes());
  EXPECT_EQ(inventory.total.num_tensors, static_cast<int64_t>(checkpoint->tensors().size()));
  EXPECT_EQ(inventory.resident_bytes + inventory.mapped_bytes + inventory.unused_bytes, inventory.total.bytes);
  TensorTotals sum;
  for (const TensorTotals& kind : inventory.kinds) {
    sum.bytes += kind.bytes;
    sum.num_tensors += kind.num_tensors;
  }
  EXPECT_EQ(sum.bytes, inventory.total.bytes);
  EXPECT_EQ(sum.num_tensors, inventory.total.num_tensors);

  EXPECT_EQ(inventory.of(TensorKind::kEmbedding).bytes, 256u * 128 * 2);
  EXPECT_EQ(inventory.of(TensorKind::kEngramTable).bytes, (630u + 834u) * 33);  // a row: 32 codes and a scale
  EXPECT_EQ(inventory.mapped_bytes, 256u * 128 * 2 + (630u + 834u) * 33);
  EXPECT_EQ(inventory.of(TensorKind::kOther).num_tensors, 0);
  // 8 layers of 8 experts: three matrices of 64 x 128 half bytes with a scale a 32 values.
  ASSERT_EQ(inventory.experts_by_layer.size(), 8u);
  for (int64_t layer = 0; layer < 8; ++layer) {
    EXPECT_EQ(inventory.experts_by_layer[layer].layer, layer);
    EXPECT_EQ(inventory.experts_by_layer[layer].totals.num_tensors, 8 * 6);
    EXPECT_EQ(inventory.experts_by_layer[layer].totals.bytes, 8u * 3 * (64 * 64 + 64 * 4));
  }
}

}  // namespace
}  // namespace deepinfer
