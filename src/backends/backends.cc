#include "backends/backends.h"

#include "backends/cpu/cpu_device.h"

namespace deepinfer {

Result<std::unique_ptr<Device>> make_device(const DeviceOptions& options) {
  if (options.name == "cpu") {
    return make_cpu_device(
        {.num_threads = options.threads, .bind_threads = options.bind_threads, .kernels = options.kernels});
  }
  return Status(ErrorCode::kUnsupported, fmt::format("device {}: this build has cpu only", options.name));
}

}  // namespace deepinfer
