// KvFormat: how the rows of a sequence's caches are stored. One setting of three names.
#pragma once

#include <optional>
#include <string_view>

#include "base/status.h"
#include "model/numerics.h"

namespace deepinfer {

enum class KvFormat {
  kBf16,  // as numbers; fp32 with exact numerics, which round no row to BF16
  kFp8,   // E4M3 with a power-of-two scale for 32. Compressed rows lose precision: results differ from kBf16
  kFp4,   // the codes of the model's own quantisers (window rows E4M3, others E2M1). Results are those of kBf16
};

inline constexpr std::string_view kKvFormatNames[] = {"bf16", "fp8", "fp4"};

inline std::string_view name_of(KvFormat format) { return kKvFormatNames[static_cast<int>(format)]; }

inline std::optional<KvFormat> kv_format_from_name(std::string_view name) {
  for (int i = 0; i < 3; ++i) {
    if (kKvFormatNames[i] == name) return static_cast<KvFormat>(i);
  }
  return std::nullopt;
}

// Packed rows hold what quantisers make; exact numerics have none.
inline Status check_kv_format(KvFormat format, Numerics numerics) {
  if (format == KvFormat::kBf16 || Rounding::of(numerics).quantise_caches) return Status();
  return invalid_input(
      "kv_cache_format {}: {} numerics keep cached rows in fp32; leave the format at bf16, or choose other numerics",
      name_of(format), name_of(numerics));
}

}  // namespace deepinfer
