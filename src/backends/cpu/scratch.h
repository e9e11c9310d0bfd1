// Scratch: 64-byte aligned memory that ops reuse. It only grows, so a steady step allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace deepinfer::cpu {

class Scratch {
 public:
  // What was there before is lost.
  template <typename T>
  T* get(int64_t count) {
    reserve(count * static_cast<int64_t>(sizeof(T)));
    return reinterpret_cast<T*>(data_.get());
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{64}); }
  };
  void reserve(int64_t bytes) {
    if (bytes <= bytes_) return;
    data_.reset(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{64})));
    bytes_ = bytes;
  }
  std::unique_ptr<std::byte, Free> data_;
  int64_t bytes_ = 0;
};

}  // namespace deepinfer::cpu
