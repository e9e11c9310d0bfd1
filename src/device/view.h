// Views of device memory. They own nothing and are passed by value; whether the memory is the host's is known to the
// backend alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>

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

// How a device keeps activations. BF16 only where the model rounds to BF16 between operations, so that storing them so
// loses nothing.
enum class ElementType : uint8_t { kF32, kBf16 };
inline int64_t element_bytes(ElementType type) { return type == ElementType::kF32 ? 4 : 2; }

// A MatrixView whose element type is the device's choice: activations between operations.
template <typename Byte, typename Float>
struct BasicTensorView {
  Byte* data = nullptr;  // null: absent
  ElementType type = ElementType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // in elements

  BasicTensorView() = default;
  BasicTensorView(Byte* bytes, ElementType element_type, int64_t num_rows, int64_t num_cols, int64_t row_stride)
      : data(bytes), type(element_type), rows(num_rows), cols(num_cols), stride(row_stride) {}
  BasicTensorView(MatrixView<Float> m)  // NOLINT(google-explicit-constructor)
      : data(reinterpret_cast<Byte*>(m.data)), rows(m.rows), cols(m.cols), stride(m.stride) {}

  explicit operator bool() const { return data != nullptr; }
  BasicTensorView columns(int64_t begin, int64_t end) const {
    return {data + begin * element_bytes(type), type, rows, end - begin, stride};
  }
  BasicTensorView row_range(int64_t begin, int64_t end) const {
    return {data + begin * stride * element_bytes(type), type, end - begin, cols, stride};
  }
  // The same memory as fp32; ends the program if it is not.
  MatrixView<Float> f32() const {
    if (data != nullptr && type != ElementType::kF32) std::abort();
    return {reinterpret_cast<Float*>(data), rows, cols, stride};
  }
};

using TensorView = BasicTensorView<std::byte, float>;
struct ConstTensorView : BasicTensorView<const std::byte, const float> {
  using BasicTensorView::BasicTensorView;
  ConstTensorView(BasicTensorView view) : BasicTensorView(view) {}  // NOLINT(google-explicit-constructor)
  ConstTensorView(MatrixView<float> m)                              // NOLINT(google-explicit-constructor)
      : BasicTensorView(MatrixView<const float>(m)) {}
  ConstTensorView(const TensorView& t)  // NOLINT(google-explicit-constructor)
      : BasicTensorView(t.data, t.type, t.rows, t.cols, t.stride) {}
};

}  // namespace deepinfer
