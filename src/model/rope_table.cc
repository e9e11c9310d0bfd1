#include "model/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace deepinfer {

std::vector<float> rope_frequencies(const ModelConfig& config, RopeKind kind) {
  const int64_t width = config.qk_rope_head_dim;
  const double theta = kind == RopeKind::kPlain ? config.rope_theta : config.compress_rope_theta;
  std::vector<float> frequencies(width / 2);
  for (int64_t j = 0; j < width / 2; ++j) {
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(width);
    frequencies[j] = 1.0f / static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
  }
  if (kind == RopeKind::kPlain || !config.rope_scaling) return frequencies;

  const RopeScaling& scaling = *config.rope_scaling;
  // The pair that makes `turns` full turns over the original context.
  const auto pair_of = [&](double turns) {
    return static_cast<double>(width) *
           std::log(static_cast<double>(scaling.original_max_position_embeddings) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(theta));
  };
  const double low = std::max(std::floor(pair_of(scaling.beta_fast)), 0.0);
  const double high = std::min(std::ceil(pair_of(scaling.beta_slow)), static_cast<double>(width - 1));
  for (int64_t j = 0; j < width / 2; ++j) {
    const float ramp =
        static_cast<float>(std::clamp((static_cast<double>(j) - low) / std::max(high - low, 0.001), 0.0, 1.0));
    const float slow = frequencies[j] / static_cast<float>(scaling.factor);
    frequencies[j] = slow * ramp + frequencies[j] * (1.0f - ramp);
  }
  return frequencies;
}

}  // namespace deepinfer
