#include "model/forward_context.h"

#include <algorithm>

namespace deepinfer {

RopeAngles ForwardContext::angles_of_groups(int ratio) const {
  if (ratio == 1) return angles[static_cast<int>(RopeKind::kCompressed)];
  const auto& ratios = plan.group_ratios;
  const AngleBuffers& of_ratio = work.group_angles[std::find(ratios.begin(), ratios.end(), ratio) - ratios.begin()];
  return {of_ratio.cosine.rows(num_tokens()), of_ratio.sine.rows(num_tokens())};
}

}  // namespace deepinfer
