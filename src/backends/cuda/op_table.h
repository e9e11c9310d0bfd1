// The table of the CUDA kernels.
#pragma once

#include "ops/op_table.h"

namespace deepinfer::cuda {

ops::OpTable make_op_table();

}  // namespace deepinfer::cuda
