// Checks of SamplingParams against the ranges that their header states and against a vocabulary.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "deepinfer/sampling_params.h"

namespace deepinfer {

// The first field out of range: the message names it, its value and the allowed range.
// Requires: vocab_size > 0. Pure function, any thread.
Status validate(const SamplingParams& params, int64_t vocab_size);

}  // namespace deepinfer
