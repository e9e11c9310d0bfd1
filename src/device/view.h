// Views of device memory. They own nothing and are passed by value; whether the memory is the host's is known to the
// backend alone.
#pragma once

#include <cstdint>

namespace deepinfer {

// A row-major matrix; row r starts at data + r * stride (in elements). stride >= cols.
template <typename T>
struct MatrixView {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  T* row(int64_t r) const { return data + r * stride; }
  MatrixView columns(int64_t begin, int64_t end) const { return {data + begin, rows, end - begin, stride}; }
  MatrixView row_range(int64_t begin, int64_t end) const { return {row(begin), end - begin, cols, stride}; }
  operator MatrixView<const T>() const { return {data, rows, cols, stride}; }  // NOLINT(google-explicit-constructor)
};

template <typename T>
MatrixView<T> dense(T* data, int64_t rows, int64_t cols) {
  return {data, rows, cols, cols};
}

}  // namespace deepinfer
