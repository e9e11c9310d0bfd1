// One decoder layer of any kind at the released widths, as the model calls its ops (model/decoder_layer.cc), over the
// weights of any layer of the slice. Experts come from a generator; the gate runs all the same.
#pragma once

#include <cstdint>
#include <string>

#include "gpu/caches.h"
#include "gpu/card.h"
#include "gpu/random_weights.h"
#include "gpu/results.h"
#include "gpu/routing.h"
#include "ops/latents.h"

namespace deepinfer::bench {

enum class LayerKind { kSwa, kFull2, kReuse2, kFull1, kReuse1, kReidx };
inline constexpr LayerKind kLayerKinds[] = {LayerKind::kSwa,   LayerKind::kFull2, LayerKind::kReuse2,
                                            LayerKind::kFull1, LayerKind::kReidx, LayerKind::kReuse1};
const char* name_of(LayerKind kind);
int64_t layers_of(LayerKind kind);  // of the released model's 40
inline bool has_indexer(LayerKind kind) {
  return kind == LayerKind::kFull2 || kind == LayerKind::kFull1 || kind == LayerKind::kReidx;
}

class LayerSlice {
 public:
  // `caches` for the same number of tokens or more; outlives this, as do `weights`.
  LayerSlice(Card& card, SliceWeights& weights, const Caches& caches, int64_t num_tokens, Skew skew);

  // The layer's ops, with the weights of layer `number` and another draw of experts each number.
  void run(LayerKind kind, int64_t number);
  // The Engram that stands before some layers: looks rows up, and adds to the streams.
  void run_engram(int64_t number);
  // The last norm, the head and a sampled token of every row. Decode only.
  void run_head();

  // Floors of one layer, of Engram and of the head, part by part (bytes over bandwidth or operations over rate).
  double layer_floor_us(LayerKind kind, const Ceilings& ceilings) const;
  double engram_floor_us(const Ceilings& ceilings) const;
  double head_floor_us(const Ceilings& ceilings) const;

 private:
  void boundary(const MhcPart& part);
  void attention(LayerKind kind, const LayerPart& layer);
  ops::LatentTask normalising(ConstTensorView in, TensorView out) const;
  ops::LatentTask stored(ops::LatentTask task, const RowPool& pool, int64_t ratio, ops::FakeQuant quantiser) const;
  void finish_latents(LayerKind kind);
  void write_compressed(int64_t ratio, const CompressorPart& part);
  void select(LayerKind kind);
  void project_output(const LayerPart& layer);
  void experts(const LayerPart& layer, int64_t number);

  Card& card_;
  SliceWeights& weights_;
  const Caches& caches_;
  int64_t n_;  // tokens
  RoutingDraws draws_;
  Activation streams_, u_, u_quantised_, y_, kv_, q_latent_, q_latent_quantised_, q_, attended_, grouped_;
  Activation compressor_latent_, latent_, index_key_, index_query_, index_weights_;
  Activation engram_rows_, key_value_, hidden_;
  DeviceValues<float> compressor_rows_, pre_, post_, mix_, router_logits_, route_weights_, logits_;
  DeviceValues<int32_t> routed_, selected_, num_selected_, reused_, num_reused_, candidates_, num_candidates_, tokens_;
  DeviceValues<int64_t> engram_ids_;
  DeviceValues<ops::SampleRow> sampling_;
};

}  // namespace deepinfer::bench
