#include "runtime/loaded_model.h"

#include <filesystem>

#include "checkpoint/token_map.h"
#include "text/engram_token_map.h"

namespace deepinfer {
namespace {

Result<std::vector<int32_t>> engram_token_map(const std::string& folder, const ModelConfig& config,
                                              const std::optional<Tokenizer>& tokenizer) {
  const int64_t num_classes = config.engram.compressed_vocab_size;
  if (std::filesystem::exists(folder + "/token_map.json"))
    return read_token_map(folder, config.vocab_size, num_classes);
  if (!tokenizer) {
    return not_found(
        "{}: has neither tokenizer.json nor token_map.json, and the model's Engram tables need one of them; "
        "copy tokenizer.json from the released checkpoint",
        folder);
  }
  DI_ASSIGN_OR_RETURN(const EngramTokenMap map, build_engram_token_map(*tokenizer));
  if (map.num_compressed_ids != num_classes || static_cast<int64_t>(map.compressed_ids.size()) != config.vocab_size) {
    return invalid_input(
        "{}/tokenizer.json gives {} compressed ids for {} tokens, but config.json has "
        "engram_compressed_vocab_size {} and vocab_size {}: the tokenizer is not this checkpoint's",
        folder, map.num_compressed_ids, map.compressed_ids.size(), num_classes, config.vocab_size);
  }
  return std::vector<int32_t>(map.compressed_ids.begin(), map.compressed_ids.end());
}

}  // namespace

Result<LoadedModel> load_model(Device& device, const std::string& folder, const ModelOptions& options) {
  LoadedModel loaded;
  DI_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(folder));
  DI_ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::from_file(folder + "/config.json"));
  DI_ASSIGN_OR_RETURN(loaded.generation, GenerationConfig::from_folder(folder));
  if (std::filesystem::exists(folder + "/tokenizer.json")) {
    DI_ASSIGN_OR_RETURN(loaded.tokenizer, Tokenizer::load(folder + "/tokenizer.json"));
    // Fewer would leave ids that the model can choose and nothing can spell.
    if (loaded.tokenizer->vocab_size() != config.vocab_size) {
      return invalid_input(
          "{}/tokenizer.json has {} tokens, but vocab_size of config.json is {}: the tokenizer is not "
          "this checkpoint's",
          folder, loaded.tokenizer->vocab_size(), config.vocab_size);
    }
  }
  std::vector<int32_t> token_map;
  if (config.engram.enabled()) {
    DI_ASSIGN_OR_RETURN(token_map, engram_token_map(folder, config, loaded.tokenizer));
  }
  const std::vector<int64_t>& stop =
      loaded.generation.eos_token_ids.empty() ? config.eos_token_ids : loaded.generation.eos_token_ids;
  for (const int64_t id : stop) loaded.stop_tokens.push_back(static_cast<int32_t>(id));
  DI_ASSIGN_OR_RETURN(loaded.model,
                      Model::load(device, std::move(checkpoint), std::move(config), std::move(token_map), options));
  return loaded;
}

}  // namespace deepinfer
