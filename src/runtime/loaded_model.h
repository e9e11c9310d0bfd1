// LoadedModel: everything a model folder holds, ready to run: weights on a device, tokenizer, sampling suggestions.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/generation_config.h"
#include "device/stream.h"
#include "model/transformer.h"
#include "text/tokenizer.h"

namespace deepinfer {

struct LoadedModel {
  std::unique_ptr<Model> model;
  std::optional<Tokenizer> tokenizer;  // absent if the folder has no tokenizer.json
  GenerationConfig generation;
  std::vector<int32_t> stop_tokens;  // end of sequence, from generation_config.json, else config.json
};

// Reads config.json, the tensors, tokenizer.json if there is one, token_map.json if there is one (else the Engram ids
// are computed from the tokenizer), generation_config.json. The device must outlive the result.
Result<LoadedModel> load_model(Device& device, const std::string& folder, const ModelOptions& options);

}  // namespace deepinfer
