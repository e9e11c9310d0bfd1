#include "checkpoint/inventory.h"

#include <charconv>
#include <map>
#include <optional>

namespace deepinfer {
namespace {

struct Prefix {
  std::string_view prefix;
  TensorKind kind;
};

// The first that fits decides.
constexpr Prefix kLayerPrefixes[] = {
    {"attn_norm.", TensorKind::kNorm},
    {"ffn_norm.", TensorKind::kNorm},
    {"hc_", TensorKind::kMhc},
    {"attn.compressor.", TensorKind::kCompressorAndIndexer},
    {"attn.indexer.", TensorKind::kCompressorAndIndexer},
    {"attn.", TensorKind::kAttention},
    {"ffn.gate.", TensorKind::kRouter},
    {"ffn.experts.", TensorKind::kExperts},
    {"ffn.shared_experts.", TensorKind::kSharedExperts},
    {"engram.embed.", TensorKind::kEngramTable},
    {"engram.", TensorKind::kEngramProjection},
};

constexpr Prefix kPrefixes[] = {
    {"embed.", TensorKind::kEmbedding}, {"head.", TensorKind::kHead},     {"norm.", TensorKind::kNorm},
    {"mtp.", TensorKind::kDraft},       {"vision.", TensorKind::kVision}, {"aligner.", TensorKind::kVision},
    {"image_", TensorKind::kVision},
};

template <size_t N>
TensorKind kind_by_prefix(const Prefix (&prefixes)[N], std::string_view name) {
  for (const Prefix& p : prefixes)
    if (name.starts_with(p.prefix)) return p.kind;
  return TensorKind::kOther;
}

struct LayerName {
  int64_t layer;
  std::string_view rest;
};

// "layers.12.attn.wkv.weight" -> 12, "attn.wkv.weight"
std::optional<LayerName> split_layer(std::string_view name) {
  constexpr std::string_view kStart = "layers.";
  if (!name.starts_with(kStart)) return std::nullopt;
  name.remove_prefix(kStart.size());
  int64_t layer = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  name.remove_prefix(static_cast<size_t>(end - name.data()));
  if (error != std::errc() || layer < 0 || !name.starts_with('.')) return std::nullopt;
  return LayerName{layer, name.substr(1)};
}

void add(TensorTotals* totals, const StoredTensor& tensor) {
  ++totals->num_tensors;
  totals->bytes += tensor.bytes;
}

uint64_t* memory_of(Inventory* inventory, TensorKind kind) {
  switch (kind) {
    case TensorKind::kEmbedding:
    case TensorKind::kEngramTable:
      return &inventory->mapped_bytes;
    case TensorKind::kDraft:
    case TensorKind::kVision:
    case TensorKind::kOther:
      return &inventory->unused_bytes;
    default:
      return &inventory->resident_bytes;
  }
}

}  // namespace

std::string_view name_of(TensorKind kind) {
  constexpr std::string_view kNames[kNumTensorKinds] = {
      "token embedding", "output head",   "norms",         "attention",     "compressor and indexer", "router",
      "routed experts",  "shared expert", "stream mixing", "Engram tables", "Engram projections",     "draft stages",
      "vision",          "other",
  };
  return kNames[static_cast<int>(kind)];
}

TensorKind kind_of_tensor(std::string_view tensor_name) {
  const auto split = split_layer(tensor_name);
  return split ? kind_by_prefix(kLayerPrefixes, split->rest) : kind_by_prefix(kPrefixes, tensor_name);
}

Inventory take_inventory(const Checkpoint& checkpoint) {
  Inventory inventory;
  std::map<int64_t, TensorTotals> experts;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    const TensorKind kind = kind_of_tensor(tensor.name);
    add(&inventory.total, tensor);
    add(&inventory.kinds[static_cast<int>(kind)], tensor);
    *memory_of(&inventory, kind) += tensor.bytes;
    if (kind == TensorKind::kExperts) add(&experts[split_layer(tensor.name)->layer], tensor);
  }
  for (const auto& [layer, totals] : experts) inventory.experts_by_layer.push_back({layer, totals});
  return inventory;
}

}  // namespace deepinfer
