// The half of `linear` that multiplies in fp32, in the order that ops/linear.h gives: any activations, any weights.
#pragma once

#include "backends/cuda/cuda_stream.h"
#include "ops/linear.h"

namespace deepinfer::cuda {

void run_exact(CudaStream& stream, const ops::LinearTask& task);

}  // namespace deepinfer::cuda
