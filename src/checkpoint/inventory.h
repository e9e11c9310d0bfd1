// Inventory: where the bytes of a checkpoint go, and how much memory it needs. A pure function of tensor names and
// sizes; it never touches tensor data.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace deepinfer {

enum class TensorKind {
  kEmbedding,
  kHead,
  kNorm,  // before attention and experts, and the final one
  kAttention,
  kCompressorAndIndexer,
  kRouter,
  kExperts,
  kSharedExperts,
  kMhc,  // the mixing of the residual streams
  kEngramTable,
  kEngramProjection,
  kDraft,   // mtp.*
  kVision,  // vision.*, aligner.*, image_*
  kOther,   // a name the engine does not know
};
inline constexpr int kNumTensorKinds = static_cast<int>(TensorKind::kOther) + 1;

// What a person reads, e.g. "routed experts".
std::string_view name_of(TensorKind kind);
TensorKind kind_of_tensor(std::string_view tensor_name);

struct TensorTotals {
  int64_t num_tensors = 0;
  uint64_t bytes = 0;  // as stored
};

struct Inventory {
  struct LayerExperts {
    int64_t layer = 0;
    TensorTotals totals;
  };

  std::array<TensorTotals, kNumTensorKinds> kinds;  // by TensorKind
  std::vector<LayerExperts> experts_by_layer;       // routed ones, ascending by layer
  TensorTotals total;

  // The three add up to total.bytes. Packing for a backend can change the first a little.
  uint64_t resident_bytes = 0;  // copied into memory when the model is loaded
  uint64_t mapped_bytes = 0;    // token embedding and Engram tables: read row by row from the files
  uint64_t unused_bytes = 0;    // draft stages, vision, unknown: not loaded by the text model

  const TensorTotals& of(TensorKind kind) const { return kinds[static_cast<int>(kind)]; }
};

Inventory take_inventory(const Checkpoint& checkpoint);

}  // namespace deepinfer
