// The one place where a device is made by name.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "device/stream.h"

namespace deepinfer {

struct DeviceOptions {
  std::string name = "cpu";
  int threads = 0;  // of the host that a device may use; 0: as many as the process may
  bool bind_threads = false;
  std::string kernels = "auto";  // or a kernel set of the device
  double gpu_memory_utilization = 0.9;  // the share of a card's memory that the device may take
};
Result<std::unique_ptr<Device>> make_device(const DeviceOptions& options);

}  // namespace deepinfer
