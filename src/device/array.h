// Device memory asked for with a reason, and DeviceArray: values that were written to a device once, such as weights of
// norms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/status.h"
#include "device/stream.h"

namespace deepinfer {

// Device::allocate with a message for who runs the program: what the memory is for, how much is free, what to do.
inline Result<std::shared_ptr<std::byte>> allocate_on(Device& device, int64_t bytes, std::string_view purpose,
                                                      std::string_view remedy) {
  Result<std::shared_ptr<std::byte>> memory = device.allocate(bytes);
  if (memory.ok()) return memory;
  return Status(ErrorCode::kOutOfMemory, fmt::format("{} bytes of device memory for {}, {} are free ({}); {}", bytes,
                                                     purpose, device.free_bytes(), memory.status().message(), remedy));
}

template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  // A copy of `host`, which is not needed afterwards. Requires: not empty.
  static Result<DeviceArray> make(Device& device, Stream& stream, std::span<const T> host) {
    const auto bytes = static_cast<int64_t>(host.size_bytes());
    DeviceArray array;
    DI_ASSIGN_OR_RETURN(array.memory_, allocate_on(device, bytes, "weights", "use a device with more"));
    stream.copy(array.memory_.get(), host.data(), bytes);
    array.size_ = static_cast<int64_t>(host.size());
    return array;
  }

  const T* data() const { return reinterpret_cast<const T*>(memory_.get()); }
  int64_t size() const { return size_; }

 private:
  std::shared_ptr<std::byte> memory_;
  int64_t size_ = 0;
};

}  // namespace deepinfer
