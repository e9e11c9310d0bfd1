// The router's product and the choice of experts in one kernel, for few tokens.
#pragma once

#include "backends/cuda/cuda_stream.h"
#include "ops/moe.h"

namespace deepinfer::cuda {

bool route_few_takes(const ops::RouteArgs& args);
void route_few(CudaStream& stream, const ops::RouteArgs& args);

}  // namespace deepinfer::cuda
