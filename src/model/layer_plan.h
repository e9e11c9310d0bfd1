// LayerPlan: which role each backbone layer plays, derived from the lists of the config. Pure data; layers without
// their own compressed KV or index use those of the nearest source before them.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model_config.h"

namespace deepinfer {

enum class RopeKind {
  kPlain,       // rope_theta; layers with ratio 0
  kCompressed,  // compress_rope_theta, with YaRN if the config has it; for window and compressed rows alike
};

struct LayerRole {
  int compress_ratio = 0;  // positions a compressed row; 0: window attention only
  bool is_kv_source = false;
  int kv_source = -1;  // the layer whose compressed KV and index keys are read, maybe this one; -1 if ratio is 0
  bool is_index_source = false;
  int index_source = -1;  // the layer whose selected rows are used, maybe this one; -1 if ratio is 0
  bool is_candidate_source = false;
  bool uses_candidates = false;  // an index source that scores only rows of the candidate source's blocks
  int engram_table = -1;         // index into EngramConfig's lists; -1: none
  RopeKind rope = RopeKind::kPlain;
};

struct LayerPlan {
  std::vector<LayerRole> layers;
  // The last KV source, if its ratio is 1, it selects rows itself and no Engram layer follows it: from here on every
  // layer attends to this layer's compressed KV, so only a suffix of a prompt needs these layers. -1 if the model has
  // no such cut.
  int first_decoder_layer = -1;
  std::vector<int> group_ratios;  // above 1, of the KV sources; ascending, each once

  // The length of that suffix from which on nothing changes: logits of the last token, and window rows as far back as
  // `max_rollback` lost tokens may ask for, are those of the whole prompt. Each layer behind the first reads
  // window_size - 1 rows further back. Requires: a cut.
  int64_t exact_decoder_suffix(int64_t window_size, int64_t max_rollback) const {
    const int64_t layers_behind = static_cast<int64_t>(layers.size()) - 1 - first_decoder_layer;
    if (layers_behind == 0) return 1 + max_rollback;
    return window_size + (layers_behind - 1) * (window_size - 1) + max_rollback;
  }

  // Requires: a config that passed its checks.
  static LayerPlan make(const ModelConfig& config);
};

}  // namespace deepinfer
