#include "checkpoint/dtype.h"

#include "base/check.h"

namespace deepinfer {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  int bits;
};

constexpr Row kRows[] = {
    {DType::kBf16, "BF16", 16},
    {DType::kF32, "F32", 32},
    {DType::kF8E4m3, "F8_E4M3", 8},
    {DType::kF8E8m0, "F8_E8M0", 8},
    {DType::kI8, "I8", 8},
    {DType::kBool, "BOOL", 8},
    {DType::kU8, "U8", 8},
    {DType::kI16, "I16", 16},
    {DType::kU16, "U16", 16},
    {DType::kF16, "F16", 16},
    {DType::kI32, "I32", 32},
    {DType::kU32, "U32", 32},
    {DType::kI64, "I64", 64},
    {DType::kU64, "U64", 64},
    {DType::kF64, "F64", 64},
    {DType::kC64, "C64", 64},
    {DType::kF8E5m2, "F8_E5M2", 8},
    {DType::kF8E4m3Fnuz, "F8_E4M3FNUZ", 8},
    {DType::kF8E5m2Fnuz, "F8_E5M2FNUZ", 8},
    {DType::kF6E2m3, "F6_E2M3", 6},
    {DType::kF6E3m2, "F6_E3M2", 6},
    {DType::kF4, "F4", 4},
};

const Row& row_of(DType dtype) {
  for (const Row& row : kRows)
    if (row.dtype == dtype) return row;
  DI_CHECK(false, "dtype {} has no row", static_cast<int>(dtype));
}

}  // namespace

std::string_view name_of(DType dtype) { return row_of(dtype).name; }
int bits_of(DType dtype) { return row_of(dtype).bits; }
bool is_supported(DType dtype) { return dtype <= DType::kI8; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const Row& row : kRows)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

}  // namespace deepinfer
