#include "scheduler/voting.h"

#include <algorithm>

namespace deepinfer {
namespace {

StepKind choose(std::span<const BallotRecord> ranks, const VotingOptions& options, const VotingState& state) {
  const auto waiting = [](const BallotRecord& rank) { return rank.has_waiting; };
  const bool any_waiting = std::any_of(ranks.begin(), ranks.end(), waiting);
  const bool all_waiting = std::all_of(ranks.begin(), ranks.end(), waiting);
  const bool any_decoding =
      std::any_of(ranks.begin(), ranks.end(), [](const BallotRecord& rank) { return rank.has_decoding; });
  if (!any_decoding) return any_waiting ? StepKind::kPrefill : StepKind::kIdle;
  if (!any_waiting) return StepKind::kDecode;
  // A burst goes on while every rank has work for it, up to its limit.
  if (state.prefill_steps > 0) {
    return all_waiting && state.prefill_steps < options.max_prefill_steps ? StepKind::kPrefill : StepKind::kDecode;
  }
  const bool quiet = std::all_of(ranks.begin(), ranks.end(),
                                 [&](const BallotRecord& rank) { return rank.num_decoding <= options.low_occupancy; });
  if (quiet) return StepKind::kPrefill;
  // "At least", not "a multiple of": an attempt that found nobody waiting is not held against who comes next.
  if (state.decode_steps >= options.any_interval) return StepKind::kPrefill;
  if (state.decode_steps >= options.all_interval && all_waiting) return StepKind::kPrefill;
  return StepKind::kDecode;
}

}  // namespace

StepKind vote(std::span<const BallotRecord> ranks, const VotingOptions& options, VotingState& state) {
  const StepKind kind = choose(ranks, options, state);
  if (kind == StepKind::kPrefill) {
    ++state.prefill_steps;
    state.decode_steps = 0;
  } else {
    state.prefill_steps = 0;
    if (kind == StepKind::kDecode) ++state.decode_steps;
  }
  return kind;
}

}  // namespace deepinfer
