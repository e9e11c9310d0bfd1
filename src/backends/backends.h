// The one place where a device is made by name.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "device/stream.h"

namespace deepinfer {

// name: "cpu". threads: 0 for as many as the process may use. kernels: "auto" or a kernel set of the device.
Result<std::unique_ptr<Device>> make_device(const std::string& name, int threads, const std::string& kernels);

}  // namespace deepinfer
