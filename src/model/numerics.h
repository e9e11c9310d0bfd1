// Numerics: where the forward pass rounds. One setting of three names.
#pragma once

#include <optional>
#include <string_view>

namespace deepinfer {

enum class Numerics {
  kOfficial,         // as the vendor computes: FP8 activations into FP8 and FP4 weights, BF16 between operations
  kBf16Activations,  // BF16 between operations, but linear inputs are not quantised; the caches still are
  kExact,            // fp32 throughout, nothing quantised but the weights: for testing structure tightly
};

inline constexpr std::string_view kNumericsNames[] = {"official", "bf16_activations", "exact"};

inline std::string_view name_of(Numerics numerics) { return kNumericsNames[static_cast<int>(numerics)]; }

inline std::optional<Numerics> numerics_from_name(std::string_view name) {
  for (int i = 0; i < 3; ++i) {
    if (kNumericsNames[i] == name) return static_cast<Numerics>(i);
  }
  return std::nullopt;
}

// What the setting means, switch by switch.
struct Rounding {
  bool quantise_linear_inputs = true;
  bool quantise_caches = true;
  bool round_to_bf16 = true;

  static Rounding of(Numerics numerics) {
    return {numerics == Numerics::kOfficial, numerics != Numerics::kExact, numerics != Numerics::kExact};
  }
};

}  // namespace deepinfer
