#include "engine/fingerprint.h"

#include <xxhash.h>

#include <algorithm>

#include <fmt/format.h>

namespace deepinfer {

uint64_t model_digest(const Model& model) {
  XXH3_state_t* state = XXH3_createState();
  XXH3_64bits_reset(state);
  for (const StoredTensor& tensor : model.checkpoint().tensors()) {
    XXH3_64bits_update(state, tensor.name.data(), tensor.name.size());
    XXH3_64bits_update(state, tensor.shape.data(), tensor.shape.size() * sizeof(int64_t));
    const size_t count = std::min<size_t>(64, tensor.bytes);
    XXH3_64bits_update(state, tensor.data, count);
    XXH3_64bits_update(state, tensor.data + tensor.bytes - count, count);
  }
  const uint64_t digest = XXH3_64bits_digest(state);
  XXH3_freeState(state);
  return digest;
}

std::string make_fingerprint(const Device& device, const Model& model, const ReplayOptions& replay) {
  // The sets of kernels that give the same bits share a name.
  const std::string name = device.kernel_set();
  const std::string set = name == "reference" || name == "avx2" || name == "avx512" ? "fp32" : name;
  const std::string kept =
      replay.mode == ReplayMode::kOff ? "replay-off" : fmt::format("replay-{}", replay.keep_tokens);
  const std::string stored = model.kv_layout().format == KvFormat::kFp8 ? "kv-fp8/" : "";
  return fmt::format("{}/{}/{}{}/{:016x}", name_of(model.numerics()), set, stored, kept, model_digest(model));
}

}  // namespace deepinfer
