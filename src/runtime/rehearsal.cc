#include "runtime/rehearsal.h"

#include <algorithm>
#include <vector>

#include "device/array.h"

namespace deepinfer {

Status rehearse(Device& device, Model& model, const StepInputs::Shape& largest, int64_t max_length) {
  DI_RETURN_IF_ERROR(model.reserve(largest));
  const int64_t count = std::min(largest.tokens, max_length);
  const std::vector<int32_t> tokens(max_length, 0);
  SequenceState state = model.make_placed_sequence();
  DI_RETURN_IF_ERROR(model.restart(state, std::span(tokens).first(max_length - count), max_length));
  std::vector<std::shared_ptr<std::byte>> blocks;
  const std::vector<CacheGroup>& groups = model.kv_layout().cache.groups;
  for (size_t g = 0; g < groups.size(); ++g) {
    const int64_t bytes = groups[g].block_bytes;
    DI_ASSIGN_OR_RETURN(std::shared_ptr<std::byte> block,
                        allocate_on(device, bytes, "a block of the cache", "raise gpu_memory_utilization"));
    model.stream().copy(block.get(), std::vector<std::byte>(bytes).data(), bytes);
    const int64_t number = (max_length + groups[g].tokens_per_block - 1) / groups[g].tokens_per_block;
    for (int64_t b = 0; b < number; ++b) state.place_block(static_cast<int>(g), b, block.get());
    blocks.push_back(std::move(block));
  }
  const SequenceStep step{.state = &state, .tokens = std::span(tokens).first(count), .logits = LogitRows::kLast};
  std::vector<float> logits;
  return model.forward({&step, 1}, logits);
}

}  // namespace deepinfer
