#include "gpu/random_weights.h"

#include "base/check.h"

namespace deepinfer::bench {

using cuda::RandomKind;
using ops::WeightFormat;
using namespace shape;

RandomWeights::RandomWeights(Card& card) : card_(card) {
  const auto pool = [&](int64_t bytes, RandomKind kind) {
    DeviceValues<std::byte> memory = card_.values<std::byte>(bytes);
    card_.fill(memory.data(), bytes, kind);
    return memory;
  };
  constexpr int64_t kMega = int64_t{1} << 20;
  e2m1_ = pool(256 * kMega, RandomKind::kE2m1);
  e4m3_ = pool(384 * kMega, RandomKind::kE4m3);
  e8m0_ = pool(32 * kMega, RandomKind::kE8m0);
  bf16_ = pool(256 * kMega, RandomKind::kBf16);
  f32_ = pool(32 * kMega, RandomKind::kF32);
}

const std::byte* RandomWeights::take(const DeviceValues<std::byte>& pool, int64_t bytes) {
  DI_CHECK(bytes <= pool.bytes(), "a matrix of {} bytes from a pool of {}", bytes, pool.bytes());
  taken_ = taken_ * 6364136223846793005u + 1442695040888963407u;
  const auto places = static_cast<uint64_t>((pool.bytes() - bytes) / 256 + 1);
  return pool.data() + static_cast<int64_t>((taken_ >> 20) % places) * 256;
}

ops::WeightSource RandomWeights::next(WeightFormat format, int64_t rows, int64_t cols) {
  ops::WeightSource source{format, rows, cols, nullptr, nullptr};
  switch (format) {
    case WeightFormat::kF8Tile32:
      source.data = take(e4m3_, rows * cols);
      source.scales = take(e8m0_, (rows + 31) / 32 * (cols / 32));
      break;
    case WeightFormat::kMxfp4:
      source.data = take(e2m1_, rows * cols / 2);
      source.scales = take(e8m0_, rows * (cols / 32));
      break;
    case WeightFormat::kBf16:
      source.data = take(bf16_, rows * cols * 2);
      break;
    case WeightFormat::kF32:
      source.data = take(f32_, rows * cols * 4);
      break;
  }
  return source;
}

ops::PackedWeight RandomWeights::pack(WeightFormat format, int64_t rows, int64_t cols) {
  return ops::pack_weight(card_.stream(), next(format, rows, cols));
}

ops::ExpertWeights RandomWeights::expert(WeightFormat format) {
  return {pack(format, kInner, kHidden), pack(format, kHidden, kInner), pack(format, kInner, kHidden)};
}

ops::ExpertBank RandomWeights::bank(int64_t num_experts) {
  ops::ExpertBank bank;
  for (int64_t e = 0; e < num_experts; ++e) bank.routed.push_back(expert(WeightFormat::kMxfp4));
  bank.shared = expert(WeightFormat::kF8Tile32);
  ops::prepare_experts(card_.stream(), bank);
  return bank;
}

ops::MhcWeights MhcPart::view() const {
  return {&fn, scale.data(), base.data(), kStreams, kSinkhornIterations, kHcEps, kNormEps};
}

SliceWeights::SliceWeights(Card& card)
    : card_(card),
      random_(card),
      ones_(card.constant(kStreams * kHidden, 1.0f)),
      zeros_(card.constant(kStreams * kHidden, 0.0f)),
      layers_(8) {}

MhcPart SliceWeights::mhc() {
  const int64_t outputs = kStreams * (kStreams + 2);
  return {random_.pack(WeightFormat::kF32, outputs, kStreams * kHidden), card_.constant(3, 0.05f),
          card_.constant(outputs, 0.0f)};
}

const LayerPart& SliceWeights::layer(int64_t index) {
  std::unique_ptr<LayerPart>& slot = layers_[index];
  if (slot != nullptr) return *slot;
  slot = std::make_unique<LayerPart>();
  slot->attention_mhc = mhc();
  slot->ffn_mhc = mhc();
  slot->wq_a = random_.pack(WeightFormat::kF8Tile32, kQueryRank, kHidden);
  slot->wkv = random_.pack(WeightFormat::kF8Tile32, kHeadDim, kHidden);
  slot->wq_b = random_.pack(WeightFormat::kF8Tile32, kHeads * kHeadDim, kQueryRank);
  for (int64_t g = 0; g < kGroups; ++g) {
    slot->wo_a.push_back(random_.pack(WeightFormat::kF8Tile32, kGroupRank, kHeads * kHeadDim / kGroups));
  }
  slot->wo_b = random_.pack(WeightFormat::kF8Tile32, kHidden, kGroups * kGroupRank);
  slot->gate = random_.pack(WeightFormat::kBf16, kExperts, kHidden);
  if (card_.ops().prepare_experts != nullptr) slot->bank = random_.bank(kExperts);
  card_.wait();
  return *slot;
}

const CompressorPart& SliceWeights::compressor(int64_t ratio) {
  std::optional<CompressorPart>& part = compressors_[ratio - 1];
  if (!part) {
    part.emplace();
    part->wkv = random_.pack(WeightFormat::kBf16, kHeadDim, kHidden);
    if (ratio > 1) part->wgate = random_.pack(WeightFormat::kBf16, kHeadDim, kHidden);
    part->index_wk = random_.pack(WeightFormat::kBf16, kIndexDim, kHeadDim);
  }
  return *part;
}

const IndexerPart& SliceWeights::indexer() {
  if (!indexer_) {
    indexer_ = IndexerPart{random_.pack(WeightFormat::kF8Tile32, kIndexHeads * kIndexDim, kQueryRank),
                           random_.pack(WeightFormat::kBf16, kIndexHeads, kHidden)};
  }
  return *indexer_;
}

const EngramPart& SliceWeights::engram() {
  if (!engram_) {
    engram_.emplace();
    engram_->wkv = random_.pack(WeightFormat::kF8Tile32, (kStreams + 1) * kHidden, kEngramColumns * kEngramDim);
    engram_->query_key = card_.constant(kStreams * kHidden, 1.0f);
    engram_->codes = card_.values<std::byte>(kEngramTableRows * kEngramDim);
    engram_->scales = card_.values<std::byte>(kEngramTableRows * kEngramDim / 32);
    card_.fill(engram_->codes.data(), engram_->codes.bytes(), RandomKind::kE4m3);
    card_.fill(engram_->scales.data(), engram_->scales.bytes(), RandomKind::kE8m0);
  }
  return *engram_;
}

const ops::PackedWeight& SliceWeights::head() {
  if (!head_) {
    const int64_t bytes = kVocabulary * kHidden * 2;
    const DeviceValues<std::byte> raw = card_.values<std::byte>(bytes);
    card_.fill(raw.data(), bytes, RandomKind::kBf16);
    head_ = ops::pack_weight(card_.stream(), {WeightFormat::kBf16, kVocabulary, kHidden, raw.data(), nullptr});
    card_.wait();
  }
  return *head_;
}

void SliceWeights::make_all() {
  for (int64_t i = 0; i < num_layers(); ++i) layer(i);
  for (const int64_t ratio : {1, 2}) compressor(ratio);
  indexer();
  engram();
  head();
  card_.wait();
}

}  // namespace deepinfer::bench
