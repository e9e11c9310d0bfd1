#include "backends/backends.h"

#include "backends/cpu/cpu_device.h"
#if DEEPINFER_HAS_CUDA
#include "backends/cuda/cuda_device.h"
#endif

namespace deepinfer {

Result<std::unique_ptr<Device>> make_device(const DeviceOptions& options) {
  if (options.name == "cpu") {
    return make_cpu_device(
        {.num_threads = options.threads, .bind_threads = options.bind_threads, .kernels = options.kernels});
  }
  if (options.name == "cuda") {
#if DEEPINFER_HAS_CUDA
    return make_cuda_device({.memory_utilization = options.gpu_memory_utilization, .kernels = options.kernels});
#else
    return unsupported(
        "device cuda: this build has no CUDA; build it where nvcc is installed (cmake -DDEEPINFER_CUDA=ON), or use "
        "--device cpu");
#endif
  }
  return unsupported("device {}: give cpu or cuda", options.name);
}

}  // namespace deepinfer
