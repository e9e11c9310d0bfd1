// DType: the element types a safetensors file can name. All names of the format are known, so that a message can say
// which one was found; the engine computes with the five of `is_supported`.
#pragma once

#include <optional>
#include <string_view>

namespace deepinfer {

enum class DType {
  kBf16,
  kF32,
  kF8E4m3,  // the "fn" variant: no infinity
  kF8E8m0,  // powers of two, used as scales
  kI8,      // also the container of two packed E2M1 values
  // Known by name only:
  kBool,
  kU8,
  kI16,
  kU16,
  kF16,
  kI32,
  kU32,
  kI64,
  kU64,
  kF64,
  kC64,
  kF8E5m2,
  kF8E4m3Fnuz,
  kF8E5m2Fnuz,
  kF6E2m3,
  kF6E3m2,
  kF4,
};

std::string_view name_of(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);
int bits_of(DType dtype);
bool is_supported(DType dtype);

}  // namespace deepinfer
