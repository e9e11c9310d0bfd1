#include "model/step.h"

#include "base/check.h"

namespace deepinfer {

void StepLayout::reset(std::span<const SequenceStep> new_steps) {
  steps = new_steps;
  tokens.clear();
  positions.clear();
  states.clear();
  logit_rows.clear();
  for (const SequenceStep& step : steps) {
    DI_CHECK(step.state != nullptr && !step.tokens.empty(), "a step without a sequence or tokens");
    const size_t count = step.tokens.size();
    for (size_t i = 0; i < count; ++i) {
      const bool wanted = step.logits == LogitRows::kAll || (step.logits == LogitRows::kLast && i + 1 == count);
      if (wanted) logit_rows.push_back(static_cast<int32_t>(tokens.size()));
      tokens.push_back(step.tokens[i]);
      positions.push_back(step.state->length() + static_cast<int64_t>(i));
      states.push_back(step.state);
    }
  }
  num_tokens = static_cast<int64_t>(tokens.size());
}

}  // namespace deepinfer
