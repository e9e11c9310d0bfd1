// What to do when a call of the CUDA runtime fails. A kernel that faults leaves the device unusable for the process, so
// inside ops it ends the program; what the world can cause (too little memory, no card) is a Status instead.
#pragma once

#include <cuda_runtime.h>

#include "base/check.h"
#include "base/status.h"

#define DI_CUDA_CHECK(call)                                                                                 \
  do {                                                                                                      \
    const cudaError_t di_cuda_error = (call);                                                               \
    DI_CHECK(di_cuda_error == cudaSuccess, "CUDA: {} ({})", cudaGetErrorString(di_cuda_error),              \
             cudaGetErrorName(di_cuda_error));                                                              \
  } while (false)

// After a kernel's launch: its configuration was refused.
#define DI_CUDA_CHECK_LAUNCH() DI_CUDA_CHECK(cudaGetLastError())
