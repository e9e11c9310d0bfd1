#include "model/step.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer {

void StepLayout::clear() {
  tokens.clear();
  positions.clear();
  states.clear();
  decoder_begin.clear();
  logit_rows.clear();
  token_slots.clear();
  draws.clear();
}

void StepLayout::reset(std::span<const SequenceStep> steps) {
  clear();
  for (const SequenceStep& step : steps) {
    DI_CHECK(step.state != nullptr && !step.tokens.empty(), "a step without a sequence or tokens");
    const size_t count = step.tokens.size();
    DI_CHECK(!step.takes_slots_token || (count == 1 && step.slot >= 0), "{} tokens of slot {}", count, step.slot);
    for (size_t i = 0; i < count; ++i) {
      const int64_t position = step.state->length() + static_cast<int64_t>(i);
      const bool wanted = step.logits == LogitRows::kAll || (step.logits == LogitRows::kLast && i + 1 == count);
      DI_CHECK(!wanted || position >= step.decoder_begin, "logits of a token that skips the decoder");
      if (wanted) {
        logit_rows.push_back(static_cast<int32_t>(tokens.size()));
        draws.push_back(i + 1 == count ? step.draw : ops::SampleRow{.position = -1});
      }
      token_slots.push_back(step.takes_slots_token ? step.slot : -1);
      tokens.push_back(step.tokens[i]);
      positions.push_back(position);
      states.push_back(step.state);
      decoder_begin.push_back(step.decoder_begin);
    }
  }
  num_tokens = static_cast<int64_t>(tokens.size());
}

int64_t StepLayout::max_length() const {
  return positions.empty() ? 0 : *std::max_element(positions.begin(), positions.end()) + 1;
}

void StepLayout::keep_decoder_rows(const StepLayout& all, std::span<const SequenceStep> steps,
                                   std::vector<int32_t>& rows) {
  clear();
  rows.clear();
  size_t next_logit = 0;
  int32_t row = 0;
  for (const SequenceStep& step : steps) {
    for (size_t i = 0; i < step.tokens.size(); ++i, ++row) {
      if (all.positions[row] < step.decoder_begin && !step.mask_only) continue;
      if (next_logit < all.logit_rows.size() && all.logit_rows[next_logit] == row) {
        logit_rows.push_back(static_cast<int32_t>(rows.size()));
        draws.push_back(all.draws[next_logit]);
        ++next_logit;
      }
      rows.push_back(row);
      tokens.push_back(all.tokens[row]);
      positions.push_back(all.positions[row]);
      states.push_back(all.states[row]);
      decoder_begin.push_back(all.decoder_begin[row]);
      token_slots.push_back(all.token_slots[row]);
    }
  }
  num_tokens = static_cast<int64_t>(rows.size());
}

}  // namespace deepinfer
