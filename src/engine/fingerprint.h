// The fingerprint of an engine: with the same one, the same request gives the same bytes.
#pragma once

#include <string>

#include "device/stream.h"
#include "model/transformer.h"
#include "scheduler/replay.h"

namespace deepinfer {

// "official/fp32/replay-off/0123456789abcdef": numerics, kernels, replay, model. A cache format that changes results is
// named after the kernels: "official/fp32/kv-fp8/replay-off/...".
std::string make_fingerprint(const Device& device, const Model& model, const ReplayOptions& replay);

// Of the configuration and a sample of every tensor's bytes (all tensors, the first and last 64 bytes of each).
uint64_t model_digest(const Model& model);

}  // namespace deepinfer
