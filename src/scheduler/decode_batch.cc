// Decode steps: one token of every sequence whose prompt is processed.
#include "scheduler/scheduler.h"

namespace deepinfer {

void Scheduler::plan_decode(StepPlan& plan) {
  scratch_.assign(running_.begin(), running_.end());
  for (const int32_t index : scratch_) {
    Sequence& sequence = at(index);
    if (sequence.phase != Phase::kDecode) continue;
    // The token that this item would sample must be allowed by the length that is already certain.
    if (sequence.num_tokens + sequence.samples_in_flight >= sequence.input->max_tokens_total) continue;
    if (!grow_or_preempt(sequence, sequence.planned + 1, Victims::kLaterArrivals, plan)) {
      // The least important sequence of all gives way itself, unless blocks are on their way.
      if (retired_step_ <= collected_step_) preempt(sequence);
      continue;
    }
    plan.items.push_back({sequence.slot, sequence.planned, {}, true, false});
    ++sequence.planned;
    ++sequence.samples_in_flight;
    sequence.last_step = plan.id;
  }
}

}  // namespace deepinfer
