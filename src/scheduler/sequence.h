// Sequence: one running continuation, as the scheduler sees it: token counts, blocks, state. The engine thread's alone.
#pragma once

#include <cstdint>
#include <memory>

#include "cache/cache_layout.h"
#include "deepinfer/request.h"
#include "step/sequence_input.h"
#include "step/step_plan.h"

namespace deepinfer {

// Names a sequence as long as it lives; a handle of an earlier one in the same place finds nothing.
struct SequenceHandle {
  int32_t index = -1;
  uint32_t generation = 0;
  bool operator==(const SequenceHandle&) const = default;
};

enum class Phase : uint8_t {
  kFree,     // not a sequence
  kWaiting,  // in the queue: never started, or preempted
  kPrefill,  // has a slot; part of its tokens are processed or planned
  kDecode,   // has a slot; all its tokens are processed or planned, and the next is (being) sampled
};

struct Sequence {
  SequenceHandle handle;
  Phase phase = Phase::kFree;
  std::unique_ptr<SequenceInput> input;
  int32_t priority = 0;  // lower goes first
  int64_t arrival = 0;   // order of submission; a preempted sequence keeps it
  uint64_t salt = 0;     // prefixes are shared among equal salts only
  SequenceHandle after;  // starts once that one has processed its prompt, to share it
  bool use_prefix_cache = true;

  // A prefix that is being brought back from a lower tier while it waits; its blocks are in the table already.
  enum class Load : uint8_t { kNone, kPending, kReady, kFailed };  // failed: not tried again
  Load load = Load::kNone;
  int64_t load_id = -1;
  int64_t load_length = 0;

  BlockTable table;
  SlotHandle slot;
  int64_t planned = 0;     // tokens whose rows are written by collected or launched steps
  int64_t computed = 0;    // … by collected steps
  int64_t num_tokens = 0;  // prompt and answer as collected
  int32_t samples_in_flight = 0;
  int64_t last_step = 0;  // the last step that names it

  int64_t num_cached_tokens = 0;    // of the prompt, adopted when it first started
  int64_t branch_length = 0;        // where its prompt leaves a known one: a unit is made there
  int64_t prompt_logprobs_end = 0;  // prompt tokens whose log-probabilities were told
  int32_t num_preemptions = 0;
  bool prefilled_once = false;

  bool wants_prompt_logprobs() const { return input->params.prompt_logprobs.has_value(); }
  int64_t num_prompt_tokens() const { return input->num_prompt_tokens; }
  int64_t num_output_tokens() const { return num_tokens - input->num_prompt_tokens; }
};

}  // namespace deepinfer
