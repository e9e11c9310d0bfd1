// A first run of the largest steps, over nothing, on a device with memory of its own: what ops keep between their
// kernels reaches its size, so that the cache can take what is left and nothing runs out later.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "device/stream.h"
#include "model/transformer.h"

namespace deepinfer {

// Takes the memory of steps of `largest` rows, and runs one at the end of a sequence of `max_length` tokens whose rows
// all lie in one block of zeros a group. Fails with what was short. Requires: nobody uses the model meanwhile.
Status rehearse(Device& device, Model& model, const StepInputs::Shape& largest, int64_t max_length);

}  // namespace deepinfer
