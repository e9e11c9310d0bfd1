#include "backends/backends.h"

#include "backends/cpu/cpu_device.h"

namespace deepinfer {

Result<std::unique_ptr<Device>> make_device(const std::string& name, int threads, const std::string& kernels) {
  if (name == "cpu") return make_cpu_device({.num_threads = threads, .kernels = kernels});
  return Status(ErrorCode::kUnsupported, fmt::format("device {}: this build has cpu only", name));
}

}  // namespace deepinfer
