// The rules a deepseek_v41 config must satisfy before anything is allocated or loaded: divisibility, layer lists, the
// candidate pool, Engram sizes. Messages name the key, its value and what is expected.
#pragma once

#include "base/status.h"
#include "model/model_config.h"

namespace deepinfer {

// Requires: every field within the range that reading it enforces.
Status check_model_config(const ModelConfig& config);

}  // namespace deepinfer
