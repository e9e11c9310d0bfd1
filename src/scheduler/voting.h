// Which kind of step all ranks run next. A pure function of what the ranks gathered, so that every rank that sees the
// same records decides the same.
#pragma once

#include <cstdint>
#include <span>

#include "step/step_plan.h"

namespace deepinfer {

// What a rank says before each step.
struct BallotRecord {
  bool has_waiting = false;  // prompts that could start or go on now: a slot and blocks are there
  bool has_decoding = false;
  int32_t num_decoding = 0;
};

struct VotingOptions {
  int64_t all_interval = 70;   // decode steps between attempts that need waiting prompts on every rank
  int64_t any_interval = 100;  // … on at least one
  // With at most so many sequences decoding on every rank, prompts do not wait for an interval.
  int32_t low_occupancy = 0;
  int64_t max_prefill_steps = 8;  // in one go, while others decode
};

// Equal on all ranks at all times.
struct VotingState {
  int64_t decode_steps = 0;   // since the last prefill step
  int64_t prefill_steps = 0;  // in a row, just now
};

// Moves the state on. Requires: at least one record.
StepKind vote(std::span<const BallotRecord> ranks, const VotingOptions& options, VotingState& state);

}  // namespace deepinfer
