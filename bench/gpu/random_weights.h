// Random weights that never leave the card: packed from pools of random codes that were drawn there, and the slice of
// the released model that the benchmark runs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "gpu/card.h"
#include "gpu/shapes.h"
#include "ops/linear.h"
#include "ops/mhc.h"
#include "ops/moe.h"

namespace deepinfer::bench {

// Packs matrices from pools, each from another place.
class RandomWeights {
 public:
  explicit RandomWeights(Card& card);

  // Where the next matrix of this form would be taken from.
  ops::WeightSource next(ops::WeightFormat format, int64_t rows, int64_t cols);
  ops::PackedWeight pack(ops::WeightFormat format, int64_t rows, int64_t cols);
  ops::ExpertWeights expert(ops::WeightFormat format);
  ops::ExpertBank bank(int64_t num_experts);

 private:
  const std::byte* take(const DeviceValues<std::byte>& pool, int64_t bytes);

  Card& card_;
  DeviceValues<std::byte> e2m1_, e4m3_, e8m0_, bf16_, f32_;
  uint64_t taken_ = 0;
};

struct MhcPart {
  ops::PackedWeight fn;
  DeviceValues<float> scale, base;
  ops::MhcWeights view() const;
};

struct CompressorPart {
  ops::PackedWeight wkv, index_wk;
  std::optional<ops::PackedWeight> wgate;  // ratio 2
};

struct IndexerPart {
  ops::PackedWeight wq_b, weights_proj;
};

struct LayerPart {
  MhcPart attention_mhc, ffn_mhc;
  ops::PackedWeight wq_a, wkv, wq_b, wo_b, gate;
  std::vector<ops::PackedWeight> wo_a;
  ops::ExpertBank bank;
};

struct EngramPart {
  ops::PackedWeight wkv;
  DeviceValues<float> query_key;
  DeviceValues<std::byte> codes, scales;
};

// Parts are made when they are first asked for, which must not be while work is recorded.
class SliceWeights {
 public:
  explicit SliceWeights(Card& card);

  RandomWeights& random() { return random_; }
  // Eight layers, or fewer where a run is short.
  const LayerPart& layer(int64_t index);
  int64_t num_layers() const { return static_cast<int64_t>(layers_.size()); }
  const CompressorPart& compressor(int64_t ratio);
  const IndexerPart& indexer();
  const EngramPart& engram();
  const ops::PackedWeight& head();
  // For any norm or sink up to the hidden width, and zeros as wide.
  const float* ones() const { return ones_.data(); }
  const float* zeros() const { return zeros_.data(); }
  void make_all();
  void limit_layers(int64_t count) { layers_.resize(count); }

 private:
  MhcPart mhc();

  Card& card_;
  RandomWeights random_;
  DeviceValues<float> ones_, zeros_;
  std::vector<std::unique_ptr<LayerPart>> layers_;
  std::optional<CompressorPart> compressors_[2];
  std::optional<IndexerPart> indexer_;
  std::optional<EngramPart> engram_;
  std::optional<ops::PackedWeight> head_;
};

}  // namespace deepinfer::bench
